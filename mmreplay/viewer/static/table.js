// The table of episodes: only the rows that can be seen are elements.

import { count, el, fill, number } from "./dom.js";
import { ENDS } from "./model.js";

const ROW = 30; // pixels, as in style.css
const SPARE = 8;

export const LANGUAGE =
	"return>10  length<=500  lane=0  env=3  #>100  terminated  truncated  open  flagged";
const LANGUAGE_OF_FIELDS = 'NAME=1  NAME="a text"  NAME:part of a text';
const OWN = ["return", "length", "lane", "env", "row", "#"];
const TERM = /^([\w.#-]+?)(>=|<=|=|>|<|:)(.*)$/;
const WORD = /(?:[^\s"]|"[^"]*")+/g; // in quotes with spaces
const COMPARE = {
	">": (a, b) => a > b,
	"<": (a, b) => a < b,
	">=": (a, b) => a >= b,
	"<=": (a, b) => a <= b,
	"=": (a, b) => a === b,
};

export const languageOf = (table) =>
	table && table.fields.length
		? `${LANGUAGE}  ${LANGUAGE_OF_FIELDS.replaceAll("NAME", table.fields[0].name)}`
		: LANGUAGE;

// A test of one term, or null if it has no sense.
function testOf([, name, sign, given], table) {
	const field = OWN.includes(name) ? null : table.field(name);
	const text = given.replaceAll('"', "");
	if (field && field.texts) {
		if (sign !== "=" && sign !== ":") return null;
		const fits = field.texts.map((one) => {
			const low = one.toLowerCase();
			return sign === "=" ? low === text : low.includes(text);
		});
		return (_, k) => fits[field.data[k]];
	}
	const value = Number(text);
	if (sign === ":" || text === "" || Number.isNaN(value)) return null;
	if (field) return (_, k) => COMPARE[sign](field.data[k], value);
	return OWN.includes(name) ? (all, k) => COMPARE[sign](valueOf(all, name, k), value) : null;
}

// A filter as a function of (table, k), or a sentence that says what it does not understand.
export function parseFilter(text, flags, table) {
	const tests = [];
	for (const word of text.toLowerCase().match(WORD) || []) {
		const term = TERM.exec(word);
		const test = term && testOf(term, table);
		if (test) {
			tests.push(test);
		} else if (ENDS.includes(word)) {
			const code = ENDS.indexOf(word);
			tests.push((table, k) => table.end[k] === code);
		} else if (word === "flagged") {
			tests.push((table, k) => flags.has(table.id(k)));
		} else {
			return `“${word}” is not understood. For example: ${languageOf(table)}`;
		}
	}
	return (table, k) => tests.every((test) => test(table, k));
}

function valueOf(table, key, k) {
	// What is left of an episode has neither.
	if ((key === "#" || key === "return") && !table.isWhole(k)) return undefined;
	if (key === "#") return k;
	if (key === "row") return table.begin(k);
	if (key === "env") return table.env(k);
	const field = OWN.includes(key) ? null : table.field(key);
	return field ? field.data[k] : table[key][k];
}

// What a cell says.
function textOf(table, key, k) {
	const value = valueOf(table, key, k);
	const field = OWN.includes(key) ? null : table.field(key);
	return field && field.texts ? field.texts[value] : number(value);
}

// The numbers of the episodes to show, in order.
export function arrange(table, filter, sort, isDown) {
	let order = new Uint32Array(table.n);
	let n = 0;
	for (let k = 0; k < table.n; k++) if (filter(table, k)) order[n++] = k;
	order = order.subarray(0, n);
	if (sort !== "#") {
		const keys = new Float64Array(table.n);
		for (const k of order) keys[k] = valueOf(table, sort, k);
		// What is no number comes last, however it is sorted.
		const sign = isDown ? -1 : 1;
		order.sort((a, b) => {
			const [x, y] = [keys[a], keys[b]];
			if (x < y) return -sign;
			if (x > y) return sign;
			if (x === y) return a - b;
			return Number.isNaN(x) - Number.isNaN(y) || a - b;
		});
	} else if (isDown) {
		order.reverse();
	}
	return order;
}

export class EpisodeTable {
	constructor({ open }) {
		this.openEpisode = open;
		this.sort = "#";
		this.isDown = false;
		this.text = "";
		this.order = new Uint32Array(0);
		this.chosen = 0; // in `order`
		this.pool = [];
		this.filterBox = el("input", {
			type: "search",
			placeholder: "Filter: return>10 terminated",
			"aria-label": "Filter episodes",
			title: LANGUAGE,
			spellcheck: "false",
			autocomplete: "off",
			oninput: () => {
				this.text = this.filterBox.value;
				this.chosen = 0;
				if (this.store) this.update();
			},
		});
		this.summary = el("span", { class: "quiet", role: "status" });
		this.message = el("p", { class: "sentence", hidden: true });
		this.head = el("div", { class: "row head", role: "row" });
		this.spacer = el("div", { class: "spacer" });
		this.body = el(
			"div",
			{ class: "rows", tabindex: "0", role: "grid", "aria-label": "Episodes" },
			this.spacer,
		);
		this.body.addEventListener("scroll", () => this.paint(), { passive: true });
		this.body.addEventListener("click", (event) => this.clicked(event));
		new ResizeObserver(() => this.paint()).observe(this.body);
		this.node = el(
			"section",
			{ class: "episodes" },
			el("div", { class: "bar" }, this.filterBox, this.summary),
			this.message,
			this.head,
			this.body,
		);
	}

	show(store) {
		if (this.store !== store) {
			this.store = store;
			this.chosen = 0;
			this.body.scrollTop = 0;
		}
		this.update();
	}

	columns() {
		const lanes = this.store.about.lanes || [];
		const columns = [
			["#", "#"],
			["return", "Return"],
			["length", "Steps"],
			["row", "Row"],
		];
		if (lanes.length > 1) columns.push(["lane", "Lane"]);
		if (lanes.some((one) => one.environments > 1)) columns.push(["env", "Env"]);
		const { table } = this.store;
		return columns.concat((table ? table.fields : []).map((one) => [one.name.toLowerCase(), one.name]));
	}

	update() {
		const { store } = this;
		const { table } = store;
		this.node.classList.toggle("waiting", !table);
		if (!table) {
			this.summary.textContent = store.head.error ? "" : "Reading episodes …";
			this.order = new Uint32Array(0);
		} else {
			const filter = parseFilter(this.text, store.flags, table);
			this.filterBox.title = languageOf(table);
			const isWrong = typeof filter === "string";
			this.say(isWrong ? filter : store.tableError);
			this.order = isWrong
				? new Uint32Array(0)
				: arrange(table, filter, this.sort, this.isDown);
			const shown = count(this.order.length, "episode");
			const cut = this.order.filter((k) => !table.isWhole(k)).length;
			this.summary.textContent =
				(this.order.length === table.n ? shown : `${shown} of ${number(table.n)}`) +
				(cut ? `, ${number(cut)} without a beginning` : "");
			if (!table.n && !isWrong) {
				this.say("No whole episode yet: the first one appears with its first step.");
			}
		}
		this.arranged = table;
		this.columnsNow = this.columns();
		this.node.style.setProperty("--columns", this.columnsNow.length);
		fill(
			this.head,
			el("span", { class: "star" }),
			this.columnsNow.map(([key, title]) =>
				el(
					"button",
					{
						class: "cell",
						"aria-sort": this.sort === key ? (this.isDown ? "descending" : "ascending") : null,
						onclick: () => this.sortBy(key),
					},
					title,
					el("span", { class: "arrow", text: this.sort !== key ? "" : this.isDown ? "↓" : "↑" }),
				),
			),
			el("span", { class: "cell end", text: "End" }),
		);
		this.head.style.paddingRight = `${this.body.offsetWidth - this.body.clientWidth}px`;
		this.spacer.style.height = `${this.order.length * ROW}px`;
		this.chosen = Math.max(Math.min(this.chosen, this.order.length - 1), 0);
		this.paint();
	}

	say(sentence) {
		this.message.hidden = !sentence;
		this.message.textContent = sentence || "";
	}

	sortBy(key) {
		// The largest return or length is what people look for first.
		if (this.sort === key) this.isDown = !this.isDown;
		else [this.sort, this.isDown] = [key, key === "return" || key === "length"];
		this.chosen = 0;
		this.body.scrollTop = 0;
		this.update();
	}

	paint() {
		if (!this.store) return;
		const { table } = this.store;
		const first = Math.max(Math.floor(this.body.scrollTop / ROW) - SPARE, 0);
		const seen = Math.ceil(this.body.clientHeight / ROW) + 2 * SPARE;
		const stop = Math.min(first + seen, this.order.length);
		while (this.pool.length < stop - first) {
			const row = el("div", { class: "row", role: "row" });
			this.pool.push(row);
			this.body.append(row);
		}
		this.pool.forEach((row, n) => {
			const place = first + n;
			row.hidden = place >= stop;
			if (!row.hidden) this.paintRow(row, table, place);
		});
	}

	paintRow(row, table, place) {
		const k = this.order[place];
		const id = table.id(k);
		const end = ENDS[table.end[k]];
		const isFlagged = this.store.flags.has(id);
		row.style.transform = `translateY(${place * ROW}px)`;
		row.dataset.place = place;
		row.className = `row${place === this.chosen ? " chosen" : ""}`;
		if (this.store.exported && !this.store.exported.has(id)) row.classList.add("absent");
		fill(
			row,
			el("button", {
				class: `star${isFlagged ? " on" : ""}`,
				tabindex: "-1",
				"aria-label": isFlagged ? "Remove the flag" : "Flag this episode",
				text: isFlagged ? "★" : "☆",
			}),
			this.columnsNow.map(([key]) => {
				const text = textOf(table, key, k);
				return el("span", { class: "cell", role: "gridcell", text, title: OWN.includes(key) ? null : text });
			}),
			el("span", { class: `cell end ${end}`, role: "gridcell", text: end }),
		);
	}

	clicked(event) {
		const row = event.target.closest(".row");
		if (!row) return;
		this.chosen = Number(row.dataset.place);
		if (event.target.closest(".star")) this.flag();
		else this.open();
		this.paint();
	}

	chosenId() {
		return this.order.length ? this.store.table.id(this.order[this.chosen]) : null;
	}

	flag() {
		const id = this.chosenId();
		if (id !== null) this.store.flag(id);
	}

	open() {
		const id = this.chosenId();
		if (id !== null) this.openEpisode(this.store, id);
	}

	// To an episode by its number, if the filter lets it be seen.
	reveal(k) {
		const place = this.order.indexOf(k);
		if (place >= 0) this.choose(place);
	}

	choose(place) {
		this.chosen = Math.max(Math.min(place, this.order.length - 1), 0);
		const top = this.chosen * ROW;
		const height = this.body.clientHeight;
		if (top < this.body.scrollTop) this.body.scrollTop = top;
		else if (top + ROW > this.body.scrollTop + height) this.body.scrollTop = top + ROW - height;
		this.paint();
	}

	// The episode `step` places after this one, in the order of the table; null at its end.
	neighbour(id, step) {
		if (this.arranged !== this.store.table) this.update();
		const k = this.store.table ? this.store.table.find(id) : -1;
		const place = k < 0 ? -1 : this.order.indexOf(k);
		if (place < 0 || place + step < 0 || place + step >= this.order.length) return null;
		this.choose(place + step);
		return this.chosenId();
	}

	key(event) {
		const page = Math.max(Math.floor(this.body.clientHeight / ROW) - 1, 1);
		const moves = {
			ArrowDown: 1,
			j: 1,
			ArrowUp: -1,
			k: -1,
			PageDown: page,
			PageUp: -page,
			Home: -Infinity,
			End: Infinity,
		};
		if (event.key in moves) this.choose(this.chosen + moves[event.key]);
		else if (event.key === "Enter") this.open();
		else if (event.key === "f") this.flag();
		else if (event.key === "/") this.filterBox.focus();
		else return false;
		return true;
	}
}
