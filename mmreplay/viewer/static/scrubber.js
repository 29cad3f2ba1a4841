// The length of an episode as a strip: rewards, actions, ends, and where one is.

import { color, el, seriesColor } from "./dom.js";

const REWARD = 46;
const ACTION = 12;
const FLAG = 6;
const GAP = 3;
const HEIGHT = REWARD + ACTION + FLAG + 2 * GAP;

export class Scrubber {
	constructor(pick) {
		this.pick = pick;
		this.canvas = el("canvas");
		this.cursor = el("div", { class: "cursor" });
		this.node = el(
			"div",
			{
				class: "scrubber",
				role: "slider",
				tabindex: "0",
				"aria-label": "Step",
				"aria-valuemin": "0",
			},
			this.canvas,
			this.cursor,
		);
		this.node.addEventListener("pointerdown", (event) => {
			this.node.setPointerCapture(event.pointerId);
			this.at(event);
		});
		this.node.addEventListener("pointermove", (event) => {
			if (event.buttons & 1) this.at(event);
		});
		new ResizeObserver(() => this.draw()).observe(this.node);
	}

	at(event) {
		const box = this.node.getBoundingClientRect();
		const part = (event.clientX - box.left) / box.width;
		this.pick(Math.min(Math.max(Math.floor(part * (this.length + 1)), 0), this.length));
	}

	// `lines` are { reward, flag, action: [..], isDiscrete, priority }, of one number a step.
	show(length, end, lines) {
		this.length = length;
		this.end = end;
		this.lines = lines;
		this.node.setAttribute("aria-valuemax", length);
		this.draw();
	}

	move(step) {
		this.step = step;
		this.node.setAttribute("aria-valuenow", step);
		const width = this.node.clientWidth;
		this.cursor.style.transform = `translateX(${((step + 0.5) / (this.length + 1)) * width}px)`;
	}

	draw() {
		const width = this.node.clientWidth;
		if (!this.lines || !width) return;
		const ratio = devicePixelRatio || 1;
		this.canvas.width = Math.round(width * ratio);
		this.canvas.height = Math.round(HEIGHT * ratio);
		const context = this.canvas.getContext("2d");
		context.scale(ratio, ratio);
		const step = width / (this.length + 1);
		this.drawReturn(context, step);
		this.drawRewards(context, step);
		this.drawActions(context, step, REWARD + GAP);
		this.drawFlags(context, step, REWARD + ACTION + 2 * GAP);
		this.move(this.step || 0);
	}

	// What had been collected up to each step, as an area behind the rewards.
	drawReturn(context, step) {
		const { reward } = this.lines;
		let [sum, low, high] = [0, 0, 0];
		const sums = reward.map((one) => {
			sum += Number.isFinite(one) ? one : 0;
			[low, high] = [Math.min(low, sum), Math.max(high, sum)];
			return sum;
		});
		if (high === low) return;
		const y = (value) => REWARD - 2 - ((value - low) / (high - low)) * (REWARD - 4);
		context.beginPath();
		context.moveTo(0, y(0));
		let before = -1;
		sums.forEach((value, k) => {
			const x = (k + 1) * step;
			if (x - before < 0.5 && k < sums.length - 1) return; // several steps a pixel
			before = x;
			context.lineTo(x, y(value));
		});
		context.lineTo(sums.length * step, y(0));
		context.closePath();
		context.fillStyle = color("area");
		context.fill();
	}

	drawRewards(context, step) {
		const { reward } = this.lines;
		const most = reward.reduce((m, one) => (Number.isFinite(one) ? Math.max(m, Math.abs(one)) : m), 0);
		if (!most) return;
		const hasBoth = reward.some((one) => one < 0) && reward.some((one) => one > 0);
		const base = hasBoth ? REWARD / 2 : reward.some((one) => one < 0) ? 1 : REWARD - 1;
		const room = hasBoth ? REWARD / 2 - 2 : REWARD - 4;
		const width = Math.max(step - 0.5, 1);
		const tops = new Map(); // one bar a pixel: the largest
		reward.forEach((one, k) => {
			if (!one || !Number.isFinite(one)) return;
			const x = Math.floor((k + 0.5) * step * 2) / 2;
			if (Math.abs(tops.get(x) || 0) < Math.abs(one)) tops.set(x, one);
		});
		for (const [x, one] of tops) {
			const size = Math.max((Math.abs(one) / most) * room, 2);
			context.fillStyle = color(one > 0 ? "accent" : "bad");
			context.fillRect(x - width / 2, one > 0 ? base - size : base, width, size);
		}
	}

	drawActions(context, step, top) {
		const { action, isDiscrete } = this.lines;
		if (!action.length) return;
		if (isDiscrete) {
			let before = -1;
			action[0].forEach((one, k) => {
				const x = k * step;
				if (!Number.isFinite(one) || (x - before < 1 && k)) return;
				before = x;
				context.fillStyle = seriesColor(one < 0 ? -one : one);
				context.globalAlpha = one === 0 ? 0.18 : 0.75;
				context.fillRect(x, top, Math.max(step, 1), ACTION);
			});
			context.globalAlpha = 1;
			return;
		}
		action.slice(0, 3).forEach((line, n) => {
			const known = line.filter(Number.isFinite);
			const low = known.reduce((a, b) => Math.min(a, b), 0);
			const high = known.reduce((a, b) => Math.max(a, b), low + 1e-9);
			context.strokeStyle = seriesColor(n);
			context.beginPath();
			let before = -1;
			line.forEach((one, k) => {
				const x = (k + 0.5) * step;
				if (!Number.isFinite(one) || x - before < 0.5) return;
				before = x;
				context.lineTo(x, top + ACTION - ((one - low) / (high - low)) * ACTION);
			});
			context.stroke();
		});
	}

	// A line where the discount is not 0; a mark where it is, and where the episode ends.
	drawFlags(context, step, top) {
		const { flag } = this.lines;
		context.fillStyle = color("line");
		context.fillRect(0, top + FLAG / 2 - 0.5, this.length * step, 1);
		context.fillStyle = color("bad");
		flag.forEach((one, k) => {
			if (one === 0) context.fillRect(k * step, top, Math.max(step, 2.5), FLAG);
		});
		if (this.end === "truncated") {
			context.fillStyle = color("warn");
			context.fillRect(this.length * step - 2, top, 3, FLAG);
		}
	}
}
