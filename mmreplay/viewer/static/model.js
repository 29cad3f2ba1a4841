// What the page knows of stores, and the paths of what it asks for.

import { getJson, getPackedChanging } from "./net.js";

export const LANE_SHIFT = 40n;
export const ROW_MASK = (1n << LANE_SHIFT) - 1n;

export const page = { stores: [], isStatic: false, start: {} };

const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);
const tell = (what) => listeners.forEach((listener) => listener(what));

export class Store {
	constructor(number, about) {
		this.number = number;
		this.table = null;
		this.tableKey = null;
		this.tableAt = 0;
		this.tableError = null;
		this.isShown = true;
		this.take(about);
	}

	take(about) {
		this.about = about;
		this.head = about.head;
		this.columns = about.columns || [];
		this.exported = about.exported ? new Set(about.exported) : null;
		this.flags = new Set(read(`flags-${about.uuid}`, []));
	}

	get name() {
		return this.about.name;
	}

	get isReady() {
		return this.columns.length > 0;
	}

	environments(lane) {
		const about = (this.about.lanes || [])[lane];
		return about ? about.environments : 1;
	}

	column(kind) {
		return this.columns.find((one) => one.kind === kind);
	}

	all(kind) {
		return this.columns.filter((one) => one.kind === kind);
	}

	// -- paths

	episodePath(id) {
		return `data/${this.number}/${this.head.version}/episode/${id}`;
	}

	rowsPath(id, column, start, stop) {
		return `${this.episodePath(id)}/rows/${column.number}/${start}-${stop}.bin`;
	}

	transitionsPath(id, { stack, nStep, gamma, padding }, start, stop) {
		const settings = `${stack}/${nStep}/${gamma}/${padding}`;
		return `${this.episodePath(id)}/transitions/${settings}/${start}-${stop}.bin`;
	}

	// -- flags

	flag(id) {
		if (!this.flags.delete(id)) this.flags.add(id);
		write(`flags-${this.about.uuid}`, [...this.flags]);
		tell("flags");
	}
}

// The episodes of a store as columns, and what the table needs of each.
export class Table {
	constructor(packed, store) {
		this.lane = packed.lane.data;
		this.row = packed.row.data;
		this.length = packed.length.data;
		this.return = packed.return.data;
		this.end = packed.end.data;
		this.evicted = packed.evicted.data; // steps before it; whole ones come first
		this.n = this.row.length;
		// Those that the user declared; of texts `data` has the numbers.
		this.fields = (packed.fields || []).map((name) => ({
			name,
			data: packed[`field.${name}`].data,
			texts: (packed.texts || {})[name],
		}));
		this.whole = this.evicted.filter((one) => one === 0).length;
		this.environments = (store.about.lanes || []).map((one) => one.environments);
		this.places = null;
		this.ends = null;
	}

	id(k) {
		return ((BigInt(this.lane[k]) << LANE_SHIFT) | BigInt(this.row[k])).toString();
	}

	field(name) {
		return this.fields.find((one) => one.name.toLowerCase() === name);
	}

	isWhole(k) {
		return this.evicted[k] === 0;
	}

	// The row of an episode's first step.
	begin(k) {
		return Math.floor(this.row[k] / (this.environments[this.lane[k]] || 1));
	}

	// (n,) when each episode ended: the transitions of all episodes that ended by then, its own too.
	get times() {
		if (this.ends) return this.ends;
		const end = (k) => this.begin(k) + this.length[k];
		this.ends = new Float64Array(this.n);
		let total = 0;
		for (const k of [...this.row.keys()].sort((a, b) => end(a) - end(b))) {
			this.ends[k] = total += this.length[k];
		}
		return this.ends;
	}

	env(k) {
		return this.row[k] % (this.environments[this.lane[k]] || 1);
	}

	// The number of the episode with this id, -1 if it is not in the table.
	find(id) {
		if (!this.places) {
			this.places = new Map();
			for (let k = 0; k < this.n; k++) this.places.set(this.id(k), k);
		}
		return this.places.has(id) ? this.places.get(id) : -1;
	}
}

export const ENDS = ["open", "terminated", "truncated"];

// -- asking

export async function loadAbout() {
	const about = await getJson("data/stores.json");
	page.isStatic = about.is_static;
	page.start = about.start;
	about.stores.forEach((one, number) => {
		if (page.stores[number]) page.stores[number].take(one);
		else page.stores[number] = new Store(number, one);
	});
	tell("about");
}

// Once a second: the heads, and of stores that have changed what the page shows of them.
export async function poll() {
	const heads = await getJson("data/heads.json");
	let isOther = false;
	let hasChanged = false;
	heads.forEach((head, number) => {
		const store = page.stores[number];
		isOther ||= head.version !== store.head.version || head.look !== store.head.look || (!head.error && !store.isReady);
		hasChanged ||= head.key !== store.head.key || head.error !== store.head.error;
		if (!isOther) store.head = head;
	});
	if (isOther) await loadAbout();
	else if (hasChanged) tell("heads");
}

// A large table is asked for less often: each time all of it comes.
const restMs = (store) => (store.table ? Math.min(store.table.n / 10, 10_000) : 0);

export function loadTable(store, atOnce = false) {
	if (store.loading) return store.loading;
	if (store.head.error || store.tableKey === store.head.key) return null;
	if (!atOnce && performance.now() - store.tableAt < restMs(store)) return null;
	store.loading = load(store);
	return store.loading;
}

async function load(store) {
	const { key } = store.head;
	try {
		const packed = await getPackedChanging(`data/${store.number}/episodes.bin`);
		store.table = new Table(packed, store);
		store.tableKey = key;
		store.tableError = null;
	} catch (error) {
		store.tableError = error.message;
	} finally {
		store.tableAt = performance.now();
		store.loading = null;
	}
	tell("table");
}

export const loadDistributions = () => getJson("data/distributions.json");

// -- what the browser remembers

export function read(key, otherwise) {
	try {
		return JSON.parse(localStorage.getItem(`mmreplay-${key}`)) ?? otherwise;
	} catch {
		return otherwise;
	}
}

export function write(key, value) {
	try {
		localStorage.setItem(`mmreplay-${key}`, JSON.stringify(value));
	} catch {
		// full, or forbidden: it is forgotten with the page
	}
}
