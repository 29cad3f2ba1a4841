// One episode: its frames, its numbers, the stack that an agent sees, and the way through it.

import { Chart, drawLines } from "./charts.js";
import { copy, count, el, fill, number, python, pythonString, tool } from "./dom.js";
import { EpisodeData } from "./episode-data.js";
import { LANE_SHIFT, ROW_MASK, loadTable, page, read, write } from "./model.js";
import { layout, paint, widened } from "./paint.js";
import { Player, SPEEDS } from "./player.js";
import { Scrubber } from "./scrubber.js";

const WINDOW = 256; // steps of a vector's lines on either side
const MOST_LINES = 6;
const MOST_VALUES = 12;
const MOST_STACK = 32;
const FOLLOW_MS = 100;

export class EpisodeView {
	constructor({ place, neighbour, back }) {
		this.place = place; // tells where one is: (store, id, step)
		this.neighbour = neighbour;
		this.back = back;
		this.step = 0;
		this.follows = false;
		this.settings = { nStep: 1, gamma: 0.99, ...read("settings", {}) };
		this.player = new Player(
			(n) => this.advance(n),
			() => this.paintControls(),
		);
		this.build();
	}

	// -- the parts of the page

	build() {
		this.title = el("h2");
		this.facts = el("span", { class: "quiet" });
		this.message = el("p", { class: "sentence", hidden: true, role: "alert" });
		this.frames = el("div", { class: "frames" });
		this.numbers = el("dl", { class: "numbers" });
		this.scrubber = new Scrubber((step) => this.show(step));
		this.trackMessage = el("p", { class: "sentence", hidden: true });
		this.position = el("output", { class: "position" });
		this.playButton = tool("▶\ufe0e", "Play (space)", () => this.togglePlay());
		this.followButton = tool("Follow", "Stay at the newest step (l)", () => this.toggleFollow());
		this.flagButton = tool("☆", "Flag this episode (f)", () => this.flag());
		this.speedBox = el(
			"select",
			{ "aria-label": "Steps a second", onchange: () => (this.player.speed = Number(this.speedBox.value)) },
			SPEEDS.map((one) => el("option", { value: one, text: `${one} / s` })),
		);
		this.buildStack();
		this.copyButton = tool("Copy as Python", "Copy this transition as Python (c)", () => this.copy());
		this.node = el(
			"article",
			{ class: "episode", hidden: true },
			el(
				"header",
				{ class: "bar" },
				tool("←", "Back to the episodes (Esc)", this.back),
				this.title,
				this.facts,
				el("span", { class: "gap" }),
				this.flagButton,
				tool("‹", "Episode before ([)", () => this.neighbour(-1)),
				tool("›", "Next episode (])", () => this.neighbour(1)),
			),
			this.message,
			el(
				"div",
				{ class: "stage" },
				this.frames,
				el("aside", {}, this.numbers, el("div", { class: "bar" }, this.copyButton)),
			),
			el(
				"div",
				{ class: "transport" },
				el(
					"div",
					{ class: "bar" },
					tool("«", "First step (Home)", () => this.show(0)),
					tool("‹", "One step back (←)", () => this.move(-1)),
					this.playButton,
					tool("›", "One step on (→)", () => this.move(1)),
					tool("»", "Last step (End)", () => this.show(this.data.length)),
					this.speedBox,
					this.followButton,
					this.position,
				),
				this.scrubber.node,
				this.trackMessage,
			),
			this.stack,
		);
	}

	buildStack() {
		const box = (key, label, options) =>
			el(
				"label",
				{},
				el("span", { text: label }),
				(this[`${key}Box`] = el("input", { type: "number", ...options, onchange: () => this.setStack() })),
			);
		this.paddingBox = el(
			"select",
			{ "aria-label": "Padding", onchange: () => this.setStack() },
			["reset", "zero"].map((one) => el("option", { value: one, text: one })),
		);
		this.seen = el("div", { class: "strip", "aria-label": "Observation" });
		this.following = el("div", { class: "strip", "aria-label": "Next observation" });
		this.returns = el("dl", { class: "numbers wide" });
		this.stackMessage = el("p", { class: "sentence", hidden: true });
		this.stackFields = el(
			"fieldset",
			{},
			box("stack", "stack", { min: 1, max: MOST_STACK }),
			box("nStep", "n_step", { min: 1, max: 1000 }),
			box("gamma", "gamma", { min: 0, max: 1, step: "any" }),
			el("label", {}, el("span", { text: "padding" }), this.paddingBox),
		);
		this.stack = el(
			"section",
			{ class: "stack" },
			el("div", { class: "bar" }, el("h3", { text: "As the agent sees it" }), this.stackFields),
			this.stackMessage,
			el("div", { class: "pair" },
				el("div", {}, el("h4", { text: "observation" }), this.seen),
				el("div", {}, el("h4", { text: "next_observation" }), this.following),
			),
			this.returns,
		);
	}

	// -- one episode

	async open(store, id, step) {
		if (this.data && this.data.store === store && this.data.id === id && this.data.version === store.head.version) {
			if (step !== this.step) this.show(step);
			return;
		}
		this.player.stop();
		if (this.data) this.data.isOver = true;
		const data = (this.data = new EpisodeData(store, id, () => this.later()));
		this.step = step;
		this.node.classList.add("waiting");
		this.say("");
		this.prepare();
		if (store.exported && !store.exported.has(id)) {
			this.fail("The frames of this episode are not in this export: the pale ones of the list are not.");
			return;
		}
		try {
			await data.refresh();
		} catch (error) {
			if (this.data === data) this.fail(error.message);
			return;
		}
		if (this.data !== data) return;
		this.node.classList.remove("waiting");
		this.describe();
		this.show(Math.min(step, data.length));
	}

	fail(sentence) {
		this.node.classList.remove("waiting");
		this.data.length = 0;
		this.title.textContent = "Episode";
		fill(this.facts);
		list(this.numbers, []);
		this.say(sentence);
	}

	say(sentence, goesOn = false) {
		this.message.hidden = !sentence;
		this.message.textContent = sentence;
		this.node.classList.toggle("failed", Boolean(sentence) && !goesOn);
	}

	// The places of frames, of this store's shapes.
	prepare() {
		const { store } = this.data;
		this.columns = store.all("frame");
		const only = this.columns.length === 1;
		this.views = this.columns.map((column) => {
			const picture = layout(column.shape);
			if (picture.kind === "vector") {
				const chart = new Chart(only ? "observation" : column.name, { height: 130 });
				return { column, picture, chart, node: chart.node };
			}
			const canvas = el("canvas", { class: "frame", "data-column": column.name });
			const note = el("p", { class: "sentence", hidden: true });
			const caption = only ? null : el("figcaption", { text: column.name });
			canvas.style.aspectRatio = `${picture.canvasWidth} / ${picture.height}`;
			const node = el("figure", { class: "picture" }, el("div", { class: "glass" }, canvas, note), caption);
			return { column, picture, canvas, note, node };
		});
		fill(this.frames, this.views.map((one) => one.node));
		this.frames.dataset.count = this.views.length;
		this.pictures = this.views.filter((one) => one.canvas);
		this.settings.stack = this.settings.stack || store.about.stack;
		if (page.isStatic) Object.assign(this.settings, { stack: store.about.stack, nStep: 1, gamma: 0.99 });
		this.padding = store.about.padding;
		this.stackBox.value = this.settings.stack;
		this.nStepBox.value = this.settings.nStep;
		this.gammaBox.value = this.settings.gamma;
		this.paddingBox.value = this.padding;
		this.stackFields.disabled = page.isStatic;
		this.stackFields.title = page.isStatic ? "An export has them for these settings only." : "";
		this.strips = [];
	}

	describe() {
		const { store, id, length, end, evicted } = this.data;
		const { table } = store;
		const k = table ? table.find(id) : -1;
		const isWhole = evicted === 0;
		this.title.textContent = k < 0 || !isWhole ? `Episode at id ${id}` : `Episode ${number(k)}`;
		const lane = Number(BigInt(id) >> LANE_SHIFT);
		const facts = [count(length, "step")];
		if (!isWhole) facts[0] += ` left, ${number(evicted)} before them evicted`;
		else if (k >= 0) facts.unshift(`return ${number(table.return[k])}`);
		if ((store.about.lanes || []).length > 1) {
			facts.push(store.about.lanes[lane].name ? `lane ${store.about.lanes[lane].name}` : `lane ${lane}`);
		}
		fill(this.facts, `${facts.join(" · ")} · `, el("span", { class: `end ${end}`, text: end }));
		const isFlagged = store.flags.has(id);
		this.flagButton.textContent = isFlagged ? "★" : "☆";
		this.flagButton.classList.toggle("on", isFlagged);
		this.followButton.hidden = store.head.state !== "live";
		this.drawTracks();
		this.paintControls();
	}

	drawTracks() {
		const { data } = this;
		const { store } = data;
		const action = store.column("action");
		const items = action.shape.reduce((a, b) => a * b, 1);
		const isDiscrete = items === 1 && /int|bool/.test(action.dtype);
		const parts = Math.min(items, 3);
		const reward = data.line(store.column("reward"));
		const flag = data.line(store.column("flag"));
		const actions = Array.from({ length: parts }, (_, part) => data.line(action, part));
		this.rewards = reward.isWhole && reward.values;
		this.scrubber.show(data.length, data.end, {
			reward: reward.values,
			flag: flag.values,
			action: actions.map((one) => one.values),
			isDiscrete,
		});
		const damage = [...reward.damage, ...flag.damage, ...actions.flatMap((one) => one.damage)];
		const failed = ["reward", "flag", "action"].map((kind) => data.failure(store.column(kind), 0));
		const sentence = damage.length ? damage[0][2] : failed.find(Boolean);
		this.trackMessage.hidden = !sentence;
		this.trackMessage.textContent = sentence || "";
	}

	// What came in is painted once, with the next refresh of the screen; what is followed, once
	// for all that comes: its writer may need the processor.
	later() {
		if (this.isWaiting) return;
		this.isWaiting = true;
		const paint = () => {
			this.isWaiting = false;
			if (!this.data || !this.data.length) return;
			this.drawTracks();
			this.paintStep();
		};
		if (this.follows) setTimeout(() => requestAnimationFrame(paint), FOLLOW_MS);
		else requestAnimationFrame(paint);
	}

	// The store has changed: the episode may have grown, and it may not be the newest any more.
	async changed() {
		const { data } = this;
		if (!data) return;
		const { store, id } = data;
		if (store.head.version !== data.version) {
			this.open(store, id, this.step);
			return;
		}
		// Called again when the table has come, which may know of a newer one.
		if (this.follows && (store.loading || this.toNewer())) return;
		if (data.end === "open" || data.length === 0) {
			try {
				const wasEmpty = data.length === 0;
				if ((await data.refresh()) && this.data === data) {
					if (wasEmpty) this.say("");
					this.describe();
					if (wasEmpty) this.show(this.step);
					else if (!this.follows) this.paintStep();
				}
			} catch (error) {
				if (this.data === data && error.status !== 0) this.fail(error.message);
				return;
			}
		}
		if (store.table && store.tableKey === store.head.key && data.length) {
			const isGone = store.table.find(id) < 0;
			this.say(isGone ? "This episode was evicted meanwhile: what is shown is what the page kept." : "", true);
		}
		// The table tells what has begun since.
		if (this.follows && data.end !== "open") loadTable(store, true);
		if (this.follows) this.show(data.length);
		else if (data.length) this.paintNumbers();
	}

	// Open the newest episode of this environment; false if it is this one.
	toNewer() {
		const { store, id } = this.data;
		const { table } = store;
		if (!table) return false;
		const [lane, row] = [Number(BigInt(id) >> LANE_SHIFT), Number(BigInt(id) & ROW_MASK)];
		const env = row % store.environments(lane);
		// -1: evicted, or newer than the table; so what is left of one, which comes last in it.
		const here = this.data.evicted === 0 ? table.find(id) : -1;
		const newest = (start, stop) => {
			for (let k = stop - 1; k >= start; k--) {
				if (table.lane[k] === lane && table.env(k) === env && table.row[k] > row) return k;
			}
			return -1;
		};
		let k = newest(here + 1, table.whole);
		if (k < 0) k = newest(table.whole, table.n);
		if (k >= 0) this.place(store, table.id(k), table.length[k]);
		return k >= 0;
	}

	// -- one step

	show(step) {
		if (!this.data) return;
		this.step = Math.min(Math.max(step, 0), this.data.length);
		this.place(this.data.store, this.data.id, this.step);
		this.paintStep();
	}

	move(by) {
		this.player.stop();
		this.follows = false;
		this.show(this.step + by);
	}

	paintStep() {
		this.paintFrames();
		this.scrubber.move(this.step);
		this.position.textContent = `${number(this.step)} / ${number(this.data.length)}`;
		this.paintNumbers();
		this.paintStack();
		const direction = this.direction || 1;
		this.data.prefetch(this.pictures.map((one) => one.column), this.step, direction);
	}

	paintFrames() {
		for (const view of this.views) {
			if (view.chart) {
				this.paintVector(view);
				continue;
			}
			const { column, canvas, note } = view;
			const row = this.data.row(column, this.step);
			const failure = row ? row.damage : this.data.failure(column, this.step);
			note.hidden = !failure;
			note.textContent = failure || "";
			canvas.classList.toggle("missing", Boolean(failure));
			canvas.classList.toggle("waiting", !row && !failure);
			if (row) {
				paint(canvas, column.shape, row.damage ? null : row.data, row.offset, this.range(column, row));
				canvas.dataset.step = this.step;
			}
		}
	}

	// What is black and white; if this row goes beyond, all is painted again.
	range(column, row) {
		const { ranges } = this.data.store.about;
		const range = ranges[column.number] || [0, 255];
		if (column.dtype === "uint8" || row.damage || !row.data) return range;
		const wider = widened(range, row.data, row.offset, row.items);
		if (wider !== range) this.later();
		return (ranges[column.number] = wider);
	}

	// The components of a vector around this step.
	paintVector(view) {
		const { column, chart } = view;
		const { data } = this;
		const values = data.values(column, this.step);
		const failure = data.failure(column, this.step) || data.row(column, this.step)?.damage;
		chart.value.textContent = failure || (values ? shownValues(values) : "");
		chart.value.classList.toggle("bad", Boolean(failure));
		const rows = data.rows(column);
		const middle = Math.round(this.step / WINDOW) * WINDOW;
		const start = Math.max(middle - WINDOW, 0);
		const stop = Math.min(middle + WINDOW, rows);
		const steps = [];
		const lines = Array.from({ length: Math.min(view.picture.length, MOST_LINES) }, () => []);
		for (let k = start; k < stop; k++) {
			const row = data.row(column, k);
			steps.push(k);
			lines.forEach((line, n) => {
				const value = row && !row.damage ? Number(row.data[row.offset + n]) : null;
				line.push(Number.isFinite(value) ? value : null);
			});
		}
		drawLines(chart, steps, lines, this.step, (step) => this.show(step));
		chart.node.dataset.step = this.step;
	}

	transitionId() {
		const { store, id } = this.data;
		const n = store.environments(Number(BigInt(id) >> LANE_SHIFT));
		return BigInt(id) + BigInt(this.step) * BigInt(n);
	}

	paintNumbers() {
		const { data, step } = this;
		const { store } = data;
		const id = this.transitionId();
		const lane = Number(id >> LANE_SHIFT);
		const row = Number(id & ROW_MASK);
		const n = store.environments(lane);
		const isLast = step >= data.length;
		const shown = [];
		if (isLast) {
			shown.push(["step", `${number(step)}: the ${data.end === "open" ? "newest" : "final"} observation`]);
		} else {
			shown.push(["id", id.toString()]);
			if (store.about.lanes.length > 1) shown.push(["lane", number(lane)]);
			shown.push(["row", number(Math.floor(row / n))]);
			if (n > 1) shown.push(["environment", number(row % n)]);
			const action = data.values(store.column("action"), step);
			shown.push(["action", action ? this.actionText(action) : "…"]);
			const reward = data.values(store.column("reward"), step);
			shown.push(["reward", reward ? number(reward[0]) : "…"]);
			const flag = data.values(store.column("flag"), step);
			shown.push(["non_terminal", flag ? String(flag[0] !== 0) : "…"]);
		}
		const collected = this.rewards
			? number(this.rewards.subarray(0, step + 1).reduce((a, b) => a + b, 0))
			: "…";
		shown.push([`return so far${data.evicted === 0 ? "" : ", of these"}`, collected]);
		if (!isLast) {
			for (const column of [...store.all("extra"), ...store.all("derived")]) {
				if (column.kind === "derived" && !page.isStatic) data.renew(column, step);
				const values = data.values(column, step);
				const failure = data.failure(column, step) || data.row(column, step)?.damage;
				shown.push([column.name, failure || (values ? shownValues(values) : "…"), failure ? "bad" : ""]);
			}
			if (store.about.has_priorities) {
				const column = store.column("priority");
				if (store.head.state === "live") data.renew(column, step);
				const priority = data.values(column, step);
				shown.push(["priority", priority ? number(priority[0]) : "…"]);
			}
		}
		list(this.numbers, shown);
		this.copyButton.disabled = isLast;
	}

	actionText(values) {
		const names = this.data.store.about.action_names;
		if (values.length > 1) return shownValues(values);
		const name = names && names[Number(values[0])];
		return name ? `${values[0]} ${name}` : number(values[0]);
	}

	// -- the stack

	stackSettings() {
		const { stack, nStep, gamma } = this.settings;
		return { stack, nStep, gamma, padding: this.padding };
	}

	setStack() {
		const inside = (box, low, high, before) => {
			const value = Number(box.value);
			const isRight = box.value !== "" && value >= low && value <= high;
			if (!isRight) box.value = before;
			return isRight ? value : before;
		};
		const s = this.settings;
		s.stack = Math.round(inside(this.stackBox, 1, MOST_STACK, s.stack));
		s.nStep = Math.round(inside(this.nStepBox, 1, 1000, s.nStep));
		s.gamma = inside(this.gammaBox, 0, 1, s.gamma);
		this.padding = this.paddingBox.value;
		write("settings", { nStep: s.nStep, gamma: s.gamma, stack: s.stack });
		this.strips = [];
		this.paintStep();
	}

	paintStack() {
		const { data, step } = this;
		const settings = this.stackSettings();
		const found = data.transition(settings, step);
		const isLast = step >= data.length;
		const failure = !isLast && !found && data.transitionFailure(settings, step);
		this.stackMessage.hidden = !(failure || isLast);
		this.stackMessage.textContent =
			failure || (isLast ? "No transition begins here: no step after this frame is stored." : "");
		this.stack.classList.toggle("none", isLast || Boolean(failure));
		this.stack.classList.toggle("waiting", !found && !failure && !isLast);
		delete this.stack.dataset.step;
		if (!found) return;
		if (this.strips.length !== settings.stack) this.makeStrips(settings.stack);
		let isWhole = true;
		for (const [side, places] of [["seen", found.seen], ["following", found.following]]) {
			places.forEach((frame, n) => {
				for (const { column, node } of this.strips[n][side]) {
					const row = frame < 0 ? { data: null, offset: 0, damage: frame < -1 && "evicted" } : data.row(column, frame);
					if (!row) {
						isWhole = false;
						continue;
					}
					node.classList.toggle("missing", Boolean(row.damage));
					node.title = frame < 0 ? row.damage || "padding" : `frame ${frame}${row.damage ? ": damaged" : ""}`;
					const block = row.damage ? null : row.data;
					if (node.tagName === "CANVAS") paint(node, column.shape, block, row.offset, this.range(column, row));
					else node.textContent = row.damage || vectorText(column, block, row.offset);
				}
			});
		}
		const steps = found.following[settings.stack - 1] - step;
		list(this.returns, [
			[settings.nStep > 1 ? `reward over ${count(steps, "step")}` : "reward", number(found.reward)],
			["discount", number(found.discount)],
			["non_terminal", String(found.nonTerminal)],
		]);
		if (isWhole) this.stack.dataset.step = step;
	}

	makeStrips(k) {
		const strip = (node) =>
			Array.from({ length: k }, () => {
				const shown = this.views.map(({ column, canvas }) => ({
					column,
					node: el(canvas ? "canvas" : "code", { class: "small", "data-column": column.name }),
				}));
				node.append(el("div", { class: "of-stack" }, shown.map((one) => one.node)));
				return shown;
			});
		fill(this.seen);
		fill(this.following);
		const [seen, following] = [strip(this.seen), strip(this.following)];
		this.strips = seen.map((one, n) => ({ seen: one, following: following[n] }));
	}

	copy() {
		if (this.step >= this.data.length) return;
		const { store } = this.data;
		const { stack, nStep, gamma, padding } = this.stackSettings();
		const id = this.transitionId();
		const found = this.data.transition(this.stackSettings(), this.step);
		const action = this.data.values(store.column("action"), this.step);
		const k = store.table ? store.table.find(this.data.id) : -1;
		const lines = [
			"import mmreplay",
			"",
			`store = mmreplay.open(${pythonString(store.about.path)})`,
			`batch = store.transitions([${id}], stack=${stack}, n_step=${nStep}, gamma=${gamma}, padding="${padding}")`,
		];
		if (found && action) {
			const shown = action.length === 1 ? python(action[0]) : `[${action.map(python).join(", ")}]`;
			lines.push(
				`# action ${shown}, reward ${python(found.reward)}, discount ${python(found.discount)}, ` +
					`non_terminal ${found.nonTerminal ? "True" : "False"}`,
			);
		}
		if (k >= 0 && this.data.evicted === 0) lines.push(`# step ${this.step} of store.trajectory(${k})`);
		copy(`${lines.join("\n")}\n`, this.copyButton);
	}

	flag() {
		this.data.store.flag(this.data.id);
		this.describe();
	}

	// -- play

	advance(n) {
		const { length } = this.data;
		if (this.step >= length) {
			if (!this.follows) this.player.stop();
			return false;
		}
		const next = Math.min(this.step + n, length);
		const isThere = this.pictures.every(({ column }) => this.data.row(column, next) || this.data.failure(column, next));
		if (!isThere) return false;
		this.show(next);
		return true;
	}

	togglePlay() {
		if (this.player.isOn) return this.player.stop();
		if (this.step >= this.data.length && !this.follows) this.show(0);
		this.player.start();
		this.paintControls();
	}

	toggleFollow() {
		this.follows = !this.follows;
		if (this.follows) {
			this.player.stop();
			if (!this.toNewer()) this.show(this.data.length);
		}
		this.paintControls();
	}

	paintControls() {
		this.playButton.textContent = this.player.isOn ? "❚❚" : "▶\ufe0e";
		this.speedBox.value = this.player.speed;
		this.followButton.classList.toggle("on", this.follows);
		this.followButton.setAttribute("aria-pressed", this.follows);
	}

	close() {
		this.player.stop();
		this.follows = false;
		if (this.data) this.data.isOver = true;
		this.data = null; // opened again, it is looked up again
	}

	key(event) {
		const big = event.shiftKey ? 10 : 1;
		const keys = {
			ArrowRight: () => this.move(big),
			ArrowLeft: () => this.move(-big),
			Home: () => this.move(-Infinity),
			End: () => this.move(Infinity),
			PageDown: () => this.move(100),
			PageUp: () => this.move(-100),
			" ": () => this.togglePlay(),
			"+": () => this.faster(1),
			"=": () => this.faster(1),
			"-": () => this.faster(-1),
			"[": () => this.neighbour(-1),
			"]": () => this.neighbour(1),
			Escape: () => this.back(),
			f: () => this.flag(),
			l: () => !this.followButton.hidden && this.toggleFollow(),
			c: () => this.copy(),
		};
		if (!(event.key in keys) || !this.data) return false;
		this.direction = event.key === "ArrowLeft" ? -1 : 1;
		keys[event.key]();
		return true;
	}

	faster(by) {
		this.player.faster(by);
		this.paintControls();
	}
}

function shownValues(values) {
	const shown = values.slice(0, MOST_VALUES).map(number).join("  ");
	return values.length > MOST_VALUES ? `${shown}  … ${number(values.length)} in all` : shown;
}

// A vector of a stack; without data zeros.
function vectorText(column, data, offset) {
	const items = column.shape.reduce((a, b) => a * b, 1);
	return shownValues(data ? Array.from(data.subarray(offset, offset + items)) : new Array(items).fill(0));
}

// A list of names and values, whose elements stay as long as the names do.
function list(node, pairs) {
	const names = pairs.map(([name]) => name).join("\n");
	if (node.dataset.names !== names) {
		fill(node, pairs.flatMap(([name]) => [el("dt", { text: name }), el("dd")]));
		node.dataset.names = names;
	}
	const values = node.querySelectorAll("dd");
	pairs.forEach(([, value, kind], n) => {
		if (values[n].textContent !== value) values[n].textContent = value;
		values[n].className = kind || "";
	});
}
