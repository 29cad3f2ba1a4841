// The page: where one is, which the address tells; the keys; and the store as it is now.

import { el, fill, tool } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { loadAbout, loadTable, onChange, page, poll, read, write } from "./model.js";
import { Overview } from "./overview.js";

const POLL_MS = 1000;
const REST_MS = 200;
const KEYS = [
	["↑ ↓  j k", "choose an episode"],
	["Enter", "open it"],
	["/", "filter the episodes"],
	["f", "flag an episode"],
	["← →", "one step; with Shift, ten"],
	["Page ↑ ↓", "a hundred steps"],
	["Home End", "first and last step"],
	["Space", "play and pause"],
	["+ −", "faster, slower"],
	["[ ]", "episode before, next episode"],
	["l", "follow a live store"],
	["c", "copy the transition as Python"],
	["Esc", "back"],
	["d", "dark or light"],
	["?", "these keys"],
];

const app = document.getElementById("app");
const banner = el("p", { class: "sentence banner", hidden: true, role: "alert" });
const help = el(
	"dialog",
	{ "aria-label": "Keys" },
	el("h2", { text: "Keys" }),
	el("dl", { class: "keys" }, KEYS.flatMap(([keys, does]) => [el("dt", { text: keys }), el("dd", { text: does })])),
	el("button", { class: "tool", text: "Close", onclick: () => help.close() }),
);

// -- light and dark

const system = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
	document.documentElement.dataset.theme = name;
	overview.redraw();
	episode.later();
}

system.addEventListener("change", () => setTheme(system.matches ? "dark" : "light"));
document.documentElement.dataset.theme = read("theme", system.matches ? "dark" : "light");

function otherTheme() {
	const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
	write("theme", next);
	setTheme(next);
}

// -- where one is

// #/store, or #/store/id/step
function parse() {
	const [, number, id, step] = location.hash.split("/");
	const store = page.stores[Number(number) || 0];
	nowhere = store ? "" : `There is no store ${number} here; this is the first.`;
	const isEpisode = store && /^\d{1,19}$/.test(id || "");
	return { store: store || page.stores[0], id: isEpisode ? id : null, step: Math.max(Math.floor(Number(step)) || 0, 0) };
}

// The address follows: browsers let it change a few times a second only, and then in silence.
let here = {};
let rest = 0;
let nowhere = "";

function address(method = "replaceState") {
	clearTimeout(rest);
	rest = 0;
	const { store, id, step } = here;
	if (!store) return;
	const hash = id === null ? `#/${store.number}` : `#/${store.number}/${id}/${step}`;
	if (hash === location.hash) return;
	try {
		history[method](null, "", hash);
	} catch {
		// too often
	}
	rest = setTimeout(address, REST_MS); // it may be another place by then
}

function place(store, id = null, step = 0) {
	const isSame = id !== null && here.id === id && here.store === store;
	if (!isSame) address(); // where the way back leads
	here = { store, id, step };
	nowhere = "";
	if (!isSame) {
		address("pushState");
		go();
	} else if (!rest) address();
}

function route() {
	clearTimeout(rest);
	rest = 0;
	here = parse();
	go();
}

function go() {
	const { store, id, step } = here;
	if (!store) return;
	say(nowhere);
	const isEpisode = id !== null && store.isReady;
	const isNew = episode.node.hidden === isEpisode;
	overview.node.hidden = isEpisode;
	episode.node.hidden = !isEpisode;
	document.title = `${store.name} · mmreplay`;
	if (isEpisode) {
		loadTable(store);
		episode.open(store, id, step);
	} else {
		episode.close();
		loadTables();
		overview.show(store);
		if (isNew) overview.table.body.focus();
	}
}

const overview = new Overview({
	open: place,
	choose: place,
});

const episode = new EpisodeView({
	place,
	back: () => place(here.store),
	neighbour: (by) => {
		const { store, id } = here;
		if (overview.table.store !== store) overview.table.show(store);
		const next = overview.table.neighbour(id, by);
		if (next !== null) place(store, next);
	},
});

// -- keys

document.addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
	const { target } = event;
	if (target.matches("input, select, textarea")) {
		if (event.key === "Escape") target.blur();
		if (event.key === "Enter" && target.type === "search") overview.table.body.focus();
		return;
	}
	// A button has its own idea of these.
	if (target.matches("button") && (event.key === " " || event.key === "Enter")) return;
	if (event.key === "?") help.showModal();
	else if (event.key === "d") otherTheme();
	else if (!(episode.node.hidden ? overview.table : episode).key(event)) return;
	event.preventDefault();
});

// -- begin

function header() {
	return el(
		"header",
		{ class: "top" },
		el("a", { class: "mark", href: "#/0", text: "mmreplay" }),
		el("span", { class: "gap" }),
		tool("◐", "Dark or light (d)", otherTheme),
		tool("?", "Keys (?)", () => help.showModal()),
	);
}

function say(sentence) {
	banner.hidden = !sentence;
	banner.textContent = sentence;
}

async function watch() {
	try {
		await poll();
		say(nowhere);
	} catch (error) {
		say(error.message);
	}
	setTimeout(watch, POLL_MS);
}

// Of stores shown now.
function loadTables() {
	const { store } = here;
	(overview.node.hidden && store ? [store] : page.stores).forEach((one) => loadTable(one));
}

onChange((what) => {
	if (what !== "flags") {
		if (what !== "table") loadTables();
		if (what === "about") {
			go();
			episode.later();
		}
		episode.changed();
	}
	if (!overview.node.hidden) overview.update();
	else if (episode.data && episode.data.length && what !== "heads") episode.describe();
});

async function begin() {
	// The token is in a cookie by now: the address can be shown to others.
	if (location.search) history.replaceState(null, "", location.pathname + location.hash);
	fill(app, header(), banner, overview.node, episode.node, help);
	for (;;) {
		try {
			await loadAbout();
			break;
		} catch (error) {
			say(error.message);
			await new Promise((done) => setTimeout(done, POLL_MS));
		}
	}
	say("");
	if (location.hash.length < 2) {
		const { store = 0, episode: id } = page.start;
		history.replaceState(null, "", id === undefined ? `#/${store}` : `#/${store}/${id}/0`);
	}
	for (const one of ["hashchange", "popstate"]) addEventListener(one, route);
	route();
	// Tables that were put off are asked for again, also when nothing new has come since.
	setInterval(loadTables, POLL_MS);
	if (!page.isStatic) watch();
}

begin();
