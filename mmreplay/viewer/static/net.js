// Requests: sentences for failures, arrays out of packed answers, and blocks that are kept.

export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

const SILENT =
	"The server does not answer: it was ended, or the connection to it is closed. Trying again …";

async function ask(path, options) {
	let response;
	try {
		response = await fetch(path, options);
	} catch {
		throw new Refused(0, SILENT);
	}
	if (response.ok || response.status === 304) return response;
	let sentence = `The host answers ${response.status} to ${path}.`;
	try {
		sentence = (await response.json()).error || sentence;
	} catch {
		// no JSON: a host that only has files
	}
	throw new Refused(response.status, sentence);
}

// Of the answers that change, the last one of each path, which the server is asked about by ETag.
const known = new Map();

export async function getJson(path) {
	return changing(path, (response) => response.json());
}

export async function getPackedChanging(path) {
	return changing(path, async (response) => unpack(await response.arrayBuffer()));
}

async function changing(path, read) {
	const before = known.get(path);
	const headers = before ? { "If-None-Match": before.etag } : {};
	const response = await ask(path, { headers, cache: "no-store" });
	if (response.status === 304) return before.value;
	const value = await read(response);
	const etag = response.headers.get("ETag");
	if (etag) known.set(path, { etag, value });
	return value;
}

const TYPES = {
	uint8: Uint8Array,
	int8: Int8Array,
	uint16: Uint16Array,
	int16: Int16Array,
	uint32: Uint32Array,
	int32: Int32Array,
	uint64: BigUint64Array,
	int64: BigInt64Array,
	float32: Float32Array,
	float64: Float64Array,
};

// As `pack` in mmreplay/viewer/documents.py writes it.
export function unpack(buffer) {
	const length = new DataView(buffer).getUint32(0, true);
	const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
	let offset = 4 + length;
	for (const [name, dtype, shape] of about.arrays) {
		const items = shape.reduce((a, b) => a * b, 1);
		const data = new TYPES[dtype](buffer, offset, items);
		about[name] = { data, shape, dtype };
		offset += Math.ceil(data.byteLength / 8) * 8;
	}
	about.bytes = buffer.byteLength;
	return about;
}

// -- blocks

const MOST_BYTES = 192 * 2 ** 20;
const RETRY_MS = 1000;
const blocks = new Map(); // path -> { value } or { promise }; the one used longest ago first
let nBytes = 0;

// A block that is here already, or null.
export function kept(path) {
	const found = blocks.get(path);
	if (!found || !found.value) return null;
	blocks.delete(path);
	blocks.set(path, found);
	return found.value;
}

// What changes in its place: shown until it has come again.
export function forget(path) {
	const found = blocks.get(path);
	if (!found || !found.value) return;
	nBytes -= found.value.bytes;
	blocks.delete(path);
}

export function getBlock(path) {
	const found = blocks.get(path);
	if (found) return found.value ? Promise.resolve(kept(path)) : found.promise;
	const promise = load(path);
	blocks.set(path, { promise });
	return promise;
}

async function load(path) {
	try {
		let response;
		for (;;) {
			try {
				response = await ask(path);
				break;
			} catch (error) {
				if (error.status !== 503) throw error;
				await new Promise((done) => setTimeout(done, RETRY_MS));
			}
		}
		const value = unpack(await response.arrayBuffer());
		nBytes += value.bytes;
		blocks.set(path, { value });
		for (const [old, one] of blocks) {
			if (nBytes <= MOST_BYTES) break;
			if (!one.value || old === path) continue;
			blocks.delete(old);
			nBytes -= one.value.bytes;
		}
		return value;
	} catch (error) {
		blocks.delete(path); // asked for again when it is looked at again
		throw error;
	}
}
