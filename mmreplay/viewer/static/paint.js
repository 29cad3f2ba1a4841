// Frames as pictures: which part of an array is a pixel, and what its values look like.

// What a frame of this shape is: { kind: "picture", tiles, width, height, at(tile, channel) }, or
// { kind: "vector", length }.
export function layout(shape) {
  const n = shape.length;
  if (n < 2) return { kind: "vector", length: n ? shape[0] : 1 };
  if (n === 2) return tiles(1, 1, shape[0], shape[1], 0, 0, shape[1], 1);
  if (n === 3) {
    const [a, b, c] = shape;
    if (c === 3) return tiles(1, 3, a, b, 0, 1, b * 3, 3);
    if (a === 3 || a === 1) return tiles(1, a, b, c, 0, b * c, c, 1);
    // Other numbers of channels are shown side by side, each as a gray picture.
    if (c < a) return tiles(c, 1, a, b, 1, 0, b * c, c);
    return tiles(a, 1, b, c, b * c, 0, c, 1);
  }
  const height = shape[n - 2];
  const width = shape[n - 1];
  const planes = shape.slice(0, n - 2).reduce((x, y) => x * y, 1);
  return tiles(Math.min(planes, 16), 1, height, width, height * width, 0, width, 1);
}

function tiles(n, channels, height, width, tileStep, channelStep, rowStep, columnStep) {
  return {
    kind: "picture",
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
    const begin = offset + tile * picture.tileStep;
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

// 0 to 255; what is no number is black.
function shade(value, low, scale) {
  const level = Math.floor((Number(value) - low) * scale + 0.5);
  return level > 0 ? Math.min(level, 255) : 0;
}
