// All stores: what they are, how they went, and the episodes of one of them.

import { Chart, drawOverTime, drawSpread } from "./charts.js";
import { count, el, fill, number, seriesColor } from "./dom.js";
import { loadDistributions, page } from "./model.js";
import { EpisodeTable } from "./table.js";

const REST_MS = 5000; // between two looks at how the numbers of a live store are spread

export class Overview {
	constructor({ open, choose }) {
		this.choose = choose;
		this.table = new EpisodeTable({ open });
		this.chips = el("nav", { class: "chips", "aria-label": "Stores" });
		this.message = el("p", { class: "sentence", hidden: true, role: "alert" });
		this.about = el("dl", { class: "about" });
		this.returns = new Chart("Returns over time");
		this.lengths = new Chart("Lengths over time");
		this.spreads = [];
		this.spreadPlace = el("div", { class: "spreads" });
		this.spreadNote = el("p", { class: "quiet note" });
		this.node = el(
			"main",
			{ class: "overview" },
			el(
				"section",
				{ class: "charts" },
				this.chips,
				this.about,
				el("div", { class: "times" }, this.returns.node, this.lengths.node),
				this.spreadPlace,
				this.spreadNote,
			),
			el("div", { class: "side" }, this.message, this.table.node),
		);
	}

	show(store) {
		this.store = store;
		this.paintChips();
		this.paintAbout();
		this.table.show(store);
		this.paintCharts();
		this.refreshSpread();
	}

	update() {
		if (this.store) this.show(this.store);
	}

	shown() {
		return page.stores.filter((one) => one.isShown && one.table && !one.head.error);
	}

	paintChips() {
		this.chips.hidden = page.stores.length < 2;
		fill(
			this.chips,
			page.stores.map((store) => {
				const dot = el("button", {
					class: `dot${store.isShown ? "" : " off"}`,
					title: store.isShown ? "Hide it in the charts" : "Show it in the charts",
					"aria-label": `${store.name}: ${store.isShown ? "hide" : "show"} in the charts`,
					onclick: () => {
						store.isShown = !store.isShown;
						this.update();
					},
				});
				dot.style.setProperty("--of", seriesColor(store.number));
				return el(
					"span",
					{ class: `chip${store === this.store ? " on" : ""}` },
					dot,
					el("button", { class: "name", text: store.name, title: store.about.path, onclick: () => this.choose(store) }),
					store.head.error ? el("span", { class: "badge bad", text: "not readable" }) : null,
				);
			}),
		);
	}

	paintAbout() {
		const { store } = this;
		const { about, head, table } = store;
		this.message.hidden = !head.error;
		this.message.textContent = head.error || "";
		if (head.error) {
			fill(this.about);
			return;
		}
		const lanes = about.lanes || [];
		const width = lanes.reduce((sum, one) => sum + one.environments, 0);
		const frames = store.all("frame").map((one) => {
			const shape = `${one.shape.join("×") || "scalar"} ${one.dtype}`;
			return store.all("frame").length > 1 ? `${one.name} ${shape}` : shape;
		});
		const env = about.env && (about.env.id || about.env.name);
		const facts = [
			["Store", about.name],
			typeof env === "string" ? ["Environment", width > 1 ? `${env} × ${width}` : env] : null,
			["State", head.state, head.state],
			["Transitions", number(head.transitions)],
			table ? ["Episodes", number(table.whole)] : null,
			["Observation", frames.join(", ")],
		];
		fill(
			this.about,
			facts
				.filter(Boolean)
				.map(([name, value, kind]) =>
					el("div", {}, el("dt", { text: name }), el("dd", { class: kind ? `state ${kind}` : "", text: value })),
				),
		);
	}

	paintCharts() {
		const stores = this.shown();
		const hasAny = stores.some((one) => one.table.whole);
		for (const chart of [this.returns, this.lengths]) chart.node.hidden = !hasAny;
		if (!hasAny) return;
		const pick = (store, k) => {
			if (store === this.store) this.table.reveal(k);
			else this.choose(store);
		};
		drawOverTime(this.returns, stores, "return", pick);
		drawOverTime(this.lengths, stores, "length", pick);
	}

	async refreshSpread() {
		const now = performance.now();
		const key = page.stores.map((one) => one.head.key).join();
		if (this.spreadKey === key || this.isAsking || now - (this.spreadAt || -REST_MS) < REST_MS) {
			this.paintSpread();
			return;
		}
		this.isAsking = true;
		try {
			this.spread = await loadDistributions();
			this.spreadKey = key;
			this.spreadError = null;
		} catch (error) {
			this.spreadError = error.message;
		} finally {
			this.spreadAt = performance.now();
			this.isAsking = false;
		}
		this.paintSpread();
	}

	paintSpread() {
		if (this.spreadError) {
			this.spreadNote.textContent = this.spreadError;
			return;
		}
		if (!this.spread) return;
		const { charts, stores } = this.spread;
		if (this.spreads.length !== charts.length) {
			this.spreads = charts.map((one) => new Chart(one.title));
			fill(this.spreadPlace, this.spreads.map((one) => one.node));
		}
		const shown = this.shown().filter((one) => one.number < stores.length);
		charts.forEach((one, n) => {
			this.spreads[n].title.textContent = one.title;
			drawSpread(this.spreads[n], one, shown);
		});
		const part = shown.filter((one) => stores[one.number].n < stores[one.number].of);
		this.spreadNote.textContent = part
			.map((one) => {
				const { n, of } = stores[one.number];
				return `${one.name}: of ${count(n, "transition")}, evenly out of ${number(of)}`;
			})
			.join("; ");
	}

	// New colours.
	redraw() {
		this.spreads.forEach((one) => (one.shape = null));
		this.update();
	}
}
