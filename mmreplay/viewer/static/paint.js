// Frames as pictures: which part of an array is a pixel, and what its values look like.

// What a frame of this shape is: a picture, or a vector.
export function layout(shape) {
	const n = shape.length;
	if (n < 2) return { kind: "vector", length: n ? shape[0] : 1 };
	if (n === 2) return tiles(1, 1, shape[0], shape[1], 0, 0, shape[1], 1);
	if (n === 3) {
		const [a, b, c] = shape;
		if (c === 3) return tiles(1, 3, a, b, 0, 1, b * 3, 3);
		if (a === 3 || a === 1) return tiles(1, a, b, c, 0, b * c, c, 1);
		// Other channels lie side by side, in gray.
		if (c < a) return tiles(c, 1, a, b, 1, 0, b * c, c);
		return tiles(a, 1, b, c, b * c, 0, c, 1);
	}
	return stacked(shape);
}

// Pictures side by side: the last axis if colours stand before it, else the first; as images.plane.
function stacked(shape) {
	const last = shape[shape.length - 1];
	const isLast = [1, 3].includes(shape[shape.length - 2]);
	const one = layout(isLast ? shape.slice(0, -1) : shape.slice(1));
	const items = shape.slice(1).reduce((x, y) => x * y, 1);
	const [n, step, scale] = isLast ? [last, 1, last] : [shape[0], items, 1];
	const { channels, height, width } = one;
	const steps = [one.channelStep, one.rowStep, one.columnStep].map((x) => x * scale);
	if (one.n === 1) return tiles(Math.min(n, 16), channels, height, width, step, ...steps);
	if (!isLast && one.n * one.tileStep === items) {
		return tiles(Math.min(n * one.n, 16), channels, height, width, one.tileStep, ...steps);
	}
	const newest = tiles(one.n, channels, height, width, one.tileStep * scale, ...steps);
	return { ...newest, first: one.first * scale + (n - 1) * step };
}

function tiles(n, channels, height, width, tileStep, channelStep, rowStep, columnStep) {
	return {
		kind: "picture",
		first: 0,
		n,
		channels,
		height,
		width,
		tileStep,
		channelStep,
		rowStep,
		columnStep,
		canvasWidth: n * width + (n - 1) * (n > 1 ? 1 : 0),
	};
}

// One frame onto a canvas of its own size. `data` is a block of frames, `offset` where this one
// begins, `range` what is black and what is white; null paints zeros.
export function paint(canvas, shape, data, offset, range) {
	const picture = layout(shape);
	const { canvasWidth: width, height } = picture;
	if (canvas.width !== width || canvas.height !== height) {
		canvas.width = width;
		canvas.height = height;
		canvas.image = null;
	}
	const context = canvas.getContext("2d", { alpha: true });
	const image = canvas.image || (canvas.image = context.createImageData(width, height));
	const pixels = image.data;
	const bytes = data instanceof Uint8Array && range[0] === 0 && range[1] === 255;
	const low = range[0];
	const scale = 255 / (range[1] - range[0]);
	const second = picture.channels === 3 ? picture.channelStep : 0;
	const third = 2 * second;
	for (let tile = 0; tile < picture.n; tile++) {
		const begin = offset + picture.first + tile * picture.tileStep;
		for (let y = 0; y < height; y++) {
			let from = begin + y * picture.rowStep;
			let to = 4 * (y * width + tile * (picture.width + 1));
			for (let x = 0; x < picture.width; x++, from += picture.columnStep, to += 4) {
				if (data === null) {
					pixels[to] = pixels[to + 1] = pixels[to + 2] = 0;
				} else if (bytes) {
					pixels[to] = data[from];
					pixels[to + 1] = data[from + second];
					pixels[to + 2] = data[from + third];
				} else {
					pixels[to] = shade(data[from], low, scale);
					pixels[to + 1] = shade(data[from + second], low, scale);
					pixels[to + 2] = shade(data[from + third], low, scale);
				}
				pixels[to + 3] = 255;
			}
		}
	}
	context.putImageData(image, 0, 0);
}

// The range, or one that holds this frame as well: nothing is cut off.
export function widened(range, data, offset, items) {
	let [low, high] = range;
	for (let k = offset; k < offset + items; k++) {
		const value = Number(data[k]);
		if (value < low && value > -Infinity) low = value;
		if (value > high && value < Infinity) high = value;
	}
	return low === range[0] && high === range[1] ? range : [low, high];
}

// 0 to 255; what is no number is black.
function shade(value, low, scale) {
	const level = Math.floor((Number(value) - low) * scale + 0.5);
	return level > 0 ? Math.min(level, 255) : 0;
}
