// Lines over time and histograms, with uPlot, and in the colours of the page.

import { color, count, el, fill, number, seriesColor, share } from "./dom.js";

const { uPlot } = window;
const BUCKETS = 300;

function axes(xFormat, label) {
	const common = {
		stroke: color("quiet"),
		grid: { stroke: color("line"), width: 1 },
		ticks: { show: false },
		font: "11px system-ui, sans-serif",
	};
	return [
		{
			...common,
			grid: { show: false },
			size: 28,
			label,
			labelSize: 16,
			labelGap: -6,
			labelFont: common.font,
			values: (_, all) => all.map(xFormat),
		},
		{ ...common, size: 52, values: (_, all) => all.map(short) },
	];
}

export function short(value) {
	if (value === null || value === undefined) return "";
	const size = Math.abs(value);
	if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
	if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
	if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
	return String(Number(value.toPrecision(4)));
}

// A titled chart that is as wide as its place.
export class Chart {
	constructor(title, { height = 170 } = {}) {
		this.height = height;
		this.value = el("span", { class: "value" });
		this.title = el("span", { text: title });
		this.place = el("div", { class: "plot" });
		this.node = el("figure", { class: "chart" }, el("figcaption", {}, this.title, this.value), this.place);
		this.plot = null;
		new ResizeObserver(() => this.fit()).observe(this.place);
	}

	fit() {
		const width = this.place.clientWidth;
		if (this.plot && width && width !== this.plot.width) {
			this.plot.setSize({ width, height: this.height });
		}
	}

	draw(options, data) {
		// The old one stays where it can be drawn again with other data.
		const shape = JSON.stringify([options.key, color("quiet"), color("line")]);
		if (this.plot && this.shape === shape) {
			this.plot.setData(data);
			return;
		}
		if (this.plot) this.plot.destroy();
		this.shape = shape;
		fill(this.place);
		this.plot = new uPlot(
			{
				width: this.place.clientWidth || 300,
				height: this.height,
				legend: { show: false },
				padding: [8, 18, 0, 0],
				...options,
			},
			data,
			this.place,
		);
	}
}

// -- over time

// The means of buckets of time, a list a store, and the first episode in each.
export function overTime(stores, key) {
	let last = 1;
	for (const { table } of stores) {
		for (const time of table.times) last = Math.max(last, time);
	}
	const most = Math.max(...stores.map(({ table }) => table.n), 1);
	const n = Math.min(BUCKETS, Math.max(most, 8));
	const times = Array.from({ length: n }, (_, b) => ((b + 0.5) * last) / n);
	const means = [];
	const firsts = [];
	for (const { table } of stores) {
		const sums = new Float64Array(n);
		const counts = new Uint32Array(n);
		const first = new Int32Array(n).fill(-1);
		for (let k = 0; k < table.n; k++) {
			const value = table[key][k];
			if (table.end[k] === 0 || !table.isWhole(k) || !Number.isFinite(value)) continue;
			const bucket = Math.min(Math.floor((table.times[k] * n) / last), n - 1);
			sums[bucket] += value;
			counts[bucket] += 1;
			if (first[bucket] < 0) first[bucket] = k;
		}
		means.push(Array.from(sums, (sum, b) => (counts[b] ? sum / counts[b] : null)));
		firsts.push(first);
	}
	return { data: [times, ...means], firsts };
}

export function drawOverTime(chart, stores, key, pick) {
	const { data, firsts } = overTime(stores, key);
	chart.firsts = firsts;
	chart.value.textContent = "";
	const options = {
		key: ["time", stores.map((one) => one.number), data[0].length > 60],
		scales: { x: { time: false } },
		axes: axes(short, "transitions"),
		cursor: {
			y: false,
			points: { size: 6 },
			drag: { setScale: false, x: false, y: false },
			bind: {
				click: (plot) => () => {
					const at = plot.cursor.idx;
					if (at === null || at === undefined) return;
					const place = chart.firsts.findIndex((first) => first[at] >= 0);
					if (place >= 0) pick(stores[place], chart.firsts[place][at]);
				},
			},
		},
		hooks: {
			setCursor: [
				(plot) => {
					const at = plot.cursor.idx;
					const shown = at === null || at === undefined ? [] : plot.data.slice(1).map((s) => s[at]);
					chart.value.textContent = shown
						.map((one) => (one === null || one === undefined ? "" : number(one)))
						.filter(Boolean)
						.join(" · ");
				},
			],
		},
		series: [
			{},
			...stores.map((store) => ({
				stroke: seriesColor(store.number),
				width: 1.5,
				spanGaps: true,
				points: { show: data[0].length <= 60, size: 5, fill: seriesColor(store.number) },
			})),
		],
	};
	chart.draw(options, data);
}

// -- vectors

// Some components of a vector along an episode, around the step that is shown.
export function drawLines(chart, steps, lines, at, pick) {
	const options = {
		key: ["lines", lines.length],
		scales: { x: { time: false } },
		axes: axes(short),
		cursor: {
			y: false,
			drag: { setScale: false, x: false, y: false },
			points: { show: false },
			bind: {
				click: (plot) => () => {
					if (plot.cursor.idx !== null) pick(plot.data[0][plot.cursor.idx]);
				},
			},
		},
		hooks: {
			draw: [
				(plot) => {
					const x = plot.valToPos(chart.at, "x", true);
					const { ctx } = plot;
					ctx.save();
					ctx.strokeStyle = color("accent");
					ctx.lineWidth = devicePixelRatio;
					ctx.beginPath();
					ctx.moveTo(x, plot.bbox.top);
					ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
					ctx.stroke();
					ctx.restore();
				},
			],
		},
		series: [{}, ...lines.map((_, n) => ({ stroke: seriesColor(n), width: 1.25 }))],
	};
	chart.at = at;
	chart.draw(options, [steps, ...lines]);
}

// -- histograms

// Few values are bars with their names; many are steps.
export function drawSpread(chart, spread, stores) {
	const totals = spread.counts.map((counts) => counts.reduce((a, b) => a + b, 0));
	chart.value.textContent = "";
	if (spread.values) {
		if (chart.plot) chart.plot.destroy();
		chart.plot = null;
		const most = Math.max(
			...spread.counts.map((counts, s) => Math.max(...counts) / Math.max(totals[s], 1)),
		);
		const rows = spread.values.map((value, v) => {
			const name = spread.names?.[value];
			const bars = stores.map((store) => {
				const n = spread.counts[store.number][v];
				const bar = el("div", { class: "fill" });
				bar.style.width = `${(100 * n) / Math.max(totals[store.number], 1) / (most || 1)}%`;
				bar.style.background = seriesColor(store.number);
				return el(
					"div",
					{ class: "bar-of", title: count(n, "transition") },
					el("div", { class: "track" }, bar),
					el("span", { class: "part", text: share(n, totals[store.number]) }),
				);
			});
			const label = el("span", { class: "label", text: name ?? number(value), title: name ? `action ${value}` : null });
			return el("div", { class: "bucket" }, label, el("div", {}, bars));
		});
		fill(chart.place, el("div", { class: "buckets" }, rows));
		return;
	}
	const middles = spread.edges.slice(1).map((edge, n) => (edge + spread.edges[n]) / 2);
	const lines = stores.map((store) =>
		spread.counts[store.number].map((n) => n / Math.max(totals[store.number], 1)),
	);
	const shares = axes(short);
	shares[1].values = (_, all) => all.map((one) => `${Number((100 * one).toPrecision(2))} %`);
	chart.draw(
		{
			key: ["spread", stores.map((one) => one.number)],
			scales: { x: { time: false }, y: { range: (_, __, high) => [0, high || 1] } },
			axes: shares,
			cursor: { show: false },
			series: [
				{},
				...stores.map((store) => ({
					stroke: seriesColor(store.number),
					fill: stores.length === 1 ? `${seriesColor(store.number)}33` : undefined,
					width: 1.5,
					paths: uPlot.paths.stepped({ align: 0 }),
					points: { show: false },
				})),
			],
		},
		[middles, ...lines],
	);
}
