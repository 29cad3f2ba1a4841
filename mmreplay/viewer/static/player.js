// Play: so many steps a second, as the screen is refreshed.

export const SPEEDS = [1, 2, 5, 10, 15, 30, 60, 120, 240, 480];

export class Player {
	// `advance(n)` goes n steps on and says whether that could be shown; `stopped` when it ends.
	constructor(advance, stopped) {
		this.advance = advance;
		this.stopped = stopped;
		this.speed = 30;
		this.isOn = false;
	}

	start() {
		this.isOn = true;
		this.due = 0;
		this.before = null;
		requestAnimationFrame((now) => this.tick(now));
	}

	stop() {
		if (!this.isOn) return;
		this.isOn = false;
		this.stopped();
	}

	tick(now) {
		if (!this.isOn) return;
		if (this.before !== null) {
			// After a pause of the page it does not catch up.
			this.due += (Math.min(now - this.before, 250) * this.speed) / 1000;
			// The screen's clock is not exactly that of the speed: a step is due a little early.
			const steps = Math.floor(this.due + 0.05);
			if (steps > 0) {
				if (this.advance(steps)) this.due -= steps;
				else this.due = 0;
			}
		}
		this.before = now;
		if (this.isOn) requestAnimationFrame((next) => this.tick(next));
	}

	faster(by) {
		const at = SPEEDS.findIndex((one) => one >= this.speed);
		this.speed = SPEEDS[Math.min(Math.max(at + by, 0), SPEEDS.length - 1)];
	}
}
