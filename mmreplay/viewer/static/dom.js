// Elements and text. Everything that comes from a store goes through textContent.

export function el(tag, props = {}, ...children) {
	const node = document.createElement(tag);
	for (const [key, value] of Object.entries(props)) {
		if (value === undefined || value === null || value === false) continue;
		if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
		else if (key === "text") node.textContent = value;
		else if (key === "class") node.className = value;
		else node.setAttribute(key, value === true ? "" : value);
	}
	node.append(...children.flat().filter((one) => one !== null && one !== undefined));
	return node;
}

export const tool = (text, title, onclick) =>
	el("button", { type: "button", class: "tool", text, title, "aria-label": title, onclick });

export const fill = (node, ...children) =>
	node.replaceChildren(...children.flat().filter((one) => one !== null && one !== undefined));

// -- numbers as people read them

const whole = new Intl.NumberFormat("en");

export function number(value) {
	if (value === null || value === undefined) return "–";
	if (typeof value === "bigint") return whole.format(value);
	if (!Number.isFinite(value)) return String(value);
	if (Number.isInteger(value) && Math.abs(value) < 1e15) return whole.format(value);
	const size = Math.abs(value);
	if (size >= 1e6 || size < 1e-4) return value.toExponential(3);
	return String(Number(value.toPrecision(5)));
}

export function share(part, of) {
	if (!of || !part) return "0 %";
	const percent = (100 * part) / of;
	return percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

export function count(n, one, many = `${one}s`) {
	return `${number(n)} ${n === 1 ? one : many}`;
}

// A value as Python writes it: exact, so that it can be compared there.
export function python(value) {
	if (typeof value === "bigint") return value.toString();
	if (Number.isNaN(value)) return 'float("nan")';
	if (!Number.isFinite(value)) return value > 0 ? 'float("inf")' : '-float("inf")';
	return String(value);
}

export function pythonString(text) {
	return JSON.stringify(text).replace(/[^ -~]/gu, (one) => {
		return `\\U${one.codePointAt(0).toString(16).padStart(8, "0")}`;
	});
}

export async function copy(text, button) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		// Without https or a loopback address there is no clipboard to write to.
		const area = el("textarea", { class: "offscreen", "aria-hidden": "true" });
		area.value = text;
		document.body.append(area);
		area.select();
		document.execCommand("copy");
		area.remove();
	}
	const label = button.textContent;
	button.textContent = "Copied";
	setTimeout(() => (button.textContent = label), 1200);
}

export const color = (name) =>
	getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const SERIES = 6;
export const seriesColor = (n) => color(`series-${n % SERIES}`);
