// One episode: its rows in blocks, and what is known of them so far.

import { forget, getBlock, getJson, kept } from "./net.js";
import { ENDS, loadTable, page } from "./model.js";

const TRANSITIONS = 64; // of a block
const RETRY_MS = 2000;

export class EpisodeData {
	constructor(store, id, arrived) {
		this.store = store;
		this.id = id;
		this.arrived = arrived;
		this.length = 0;
		this.end = "open";
		this.evicted = 0; // as in the table
		this.version = store.head.version;
		this.newest = new Map(); // of blocks that grow: the last one that came
		this.renewedAt = new Map(); // number of a column -> when
		this.failures = new Map(); // path -> { message, at }
		this.isOver = false; // nobody looks at it any more
	}

	// How long it is by now, from the table where that cannot have changed. True if it has grown.
	async refresh() {
		const before = `${this.length} ${this.end}`;
		if (page.isStatic) await loadTable(this.store);
		const { table } = this.store;
		const k = table ? table.find(this.id) : -1;
		if (k >= 0 && (table.end[k] !== 0 || page.isStatic)) {
			this.length = table.length[k];
			this.end = ENDS[table.end[k]];
			this.evicted = table.evicted[k];
		} else if (page.isStatic) {
			throw new Error("There is no such episode in this export.");
		} else {
			const about = await getJson(`${this.store.episodePath(this.id)}.json`);
			this.length = about.length;
			this.end = about.end;
			this.evicted = about.evicted;
		}
		return before !== `${this.length} ${this.end}`;
	}

	rows(column) {
		return this.length + (column.kind === "frame" ? 1 : 0);
	}

	path(column, k) {
		const start = Math.floor(k / column.block) * column.block;
		const stop = Math.min(start + column.block, this.rows(column));
		return this.store.rowsPath(this.id, column, start, stop);
	}

	// A row; null if it is not here yet, and then it is asked for.
	row(column, k) {
		if (k < 0 || k >= this.rows(column)) return null;
		const path = this.path(column, k);
		const start = Math.floor(k / column.block) * column.block;
		const key = `${column.number}/${start}`;
		const block = kept(path) || (this.ask(path, key), this.newest.get(key));
		if (!block || k - start >= block.rows.shape[0]) return null;
		const items = block.rows.data.length / block.rows.shape[0];
		const hit = block.damage.find(([from, to]) => from <= k && k < to);
		return { data: block.rows.data, offset: (k - start) * items, items, damage: hit && hit[2] };
	}

	// Priorities and derived columns change in place: they are asked for again, and shown until
	// they have come.
	renew(column, k) {
		const now = performance.now();
		if (now - (this.renewedAt.get(column.number) ?? -RETRY_MS) < RETRY_MS / 2) return;
		this.renewedAt.set(column.number, now);
		forget(this.path(column, k));
	}

	// The values of a row as numbers: a list, or null.
	values(column, k) {
		const row = this.row(column, k);
		return row && Array.from(row.data.subarray(row.offset, row.offset + row.items));
	}

	ask(path, key) {
		const failure = this.failures.get(path);
		if (failure && performance.now() - failure.at < RETRY_MS) return;
		getBlock(path).then(
			(block) => {
				this.failures.delete(path);
				if (key) this.newest.set(key, block);
				if (!this.isOver) this.arrived();
			},
			(error) => {
				const isNew = !this.failures.has(path);
				this.failures.set(path, { message: error.message, at: performance.now() });
				if (isNew && !this.isOver) this.arrived();
			},
		);
	}

	failure(column, k) {
		return this.failures.get(this.path(column, k))?.message;
	}

	// Ask for the frames around a step before they are looked at.
	prefetch(columns, k, direction) {
		for (const column of columns) {
			const next = k + direction * column.block;
			if (next >= 0 && next < this.rows(column) && !kept(this.path(column, next))) {
				this.ask(this.path(column, next));
			}
		}
	}

	// A column of numbers along the whole episode, NaN where they are still to come.
	line(column, part = 0) {
		const out = new Float64Array(this.length).fill(NaN);
		const damage = [];
		let isWhole = true;
		for (let start = 0; start < this.length; start += column.block) {
			const path = this.path(column, start);
			const block = kept(path) || this.newest.get(`${column.number}/${start}`);
			if (!kept(path)) this.ask(path, `${column.number}/${start}`);
			if (!block) {
				isWhole = false;
				continue;
			}
			const n = block.rows.shape[0];
			const items = block.rows.data.length / n;
			const stop = Math.min(n, this.length - start);
			for (let k = 0; k < stop; k++) out[start + k] = Number(block.rows.data[k * items + part]);
			for (const one of block.damage) {
				damage.push(one);
				out.fill(NaN, one[0], Math.min(one[1], this.length));
			}
		}
		return { values: out, damage, isWhole };
	}

	// Of a step: the frames of its stacks, and its return; or null.
	transition(settings, k) {
		if (k < 0 || k >= this.length) return null;
		const path = this.transitionsPath(settings, k);
		const block = kept(path);
		if (!block) {
			this.ask(path);
			return null;
		}
		const at = k % TRANSITIONS;
		const width = block.seen.shape[1];
		return {
			seen: Array.from(block.seen.data.subarray(at * width, (at + 1) * width)),
			following: Array.from(block.following.data.subarray(at * width, (at + 1) * width)),
			reward: block.reward.data[at],
			discount: block.discount.data[at],
			nonTerminal: block.non_terminal.data[at] !== 0,
		};
	}

	transitionsPath(settings, k) {
		const start = Math.floor(k / TRANSITIONS) * TRANSITIONS;
		const stop = Math.min(start + TRANSITIONS, this.length);
		const path = this.store.transitionsPath(this.id, settings, start, stop);
		// The returns of the newest steps change as long as the episode goes on.
		const goesOn = this.end === "open" && stop + settings.nStep > this.length;
		return goesOn && !page.isStatic ? `${path}?of=${this.length}` : path;
	}

	transitionFailure(settings, k) {
		return this.failures.get(this.transitionsPath(settings, k))?.message;
	}
}
