"""JSON that is not what it should be: other values, other forms, no JSON at all. Pure.

Invariant: text in, text out; the same random numbers make the same change.
"""

import copy
import json
import re
from typing import Any

from tests.support.tampering.fixtures import any_of, chance

# What a number, a text or a node of JSON may be exchanged for.
_NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 39, 40, 41, 255, 256, 1023, 1024, -1, -2, -(1 << 63),
    1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 39, (1 << 40) - 1, 1 << 40, 1 << 53,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 0.0, -0.0, 0.5, 1.5, 1e308, True, False,
)  # fmt: skip
_TEXTS = (
    "", "a", "0", "1", "raw", "lz4", "lz4hc", "zstd", "gzip", "blosc", "bytes", "crc32c",
    "sharding_indexed", "transpose", "vlen-utf8", "blosclz", "snappy", "zlib", "big", "little",
    "start", "end", "/", ".", "..", "../..", "../out", "/etc/passwd", "regular", "default", "v2",
    "lane", "lanes", "reset", "zero", "uint8", "int8", "bool", "uint16", "int64", "float16",
    "float32", "float64", "float128", "complex64", "object", "O", "S9", "V4", "M8[ns]", "a",
    ">f4", "f4,f4", "(2,3)f4", "(", ",", "{'names': ['a'], 'formats': ['f4']}", "datetime64",
    "NaN", "Infinity", "noshuffle", "shuffle", "bitshuffle", "\x00", "\ud800", "\udcff", "\u202e",
    "\x1b[2J\x1b[31m", "\r\n", "é", "٣", "frames", "x" * 300, "y" * 70_000, "c.0", "zarr.json",
    "{0}", "%s%n", "__class__", "lane-00000", "0" * 32, "f" * 32, "A" * 32,
)  # fmt: skip
_NODES = (
    None, [], {}, [0], [1], [[]], [None], {"name": "bytes"}, {"name": None}, {"dict": {}},
    {"dict": {"a": {"shape": [], "dtype": "uint8"}}}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    {"name": "sharding_indexed", "configuration": {}}, [1 << 39, 1 << 39], [-1], [1 << 64],
    {"shape": [1 << 20, 1 << 20], "dtype": "uint8"}, {"shape": [], "dtype": ["uint8"]},
)  # fmt: skip
_LITERALS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 400, b"9" * 4300, b"9" * 5000,
    b"-0", b"1E400", b"0.1e-400", b"tru", b"'x'", b"undefined", b"00", b"0x10", b'"\xff\xfe"',
    b'"\\ud800"', b"\x00", b"1.0000000000000000000001", b"[1,2", b"{}{}", b'"\\u0000"',
)  # fmt: skip
_DEPTHS = (20, 80, 150, 300, 450, 600, 900, 950, 990, 1100, 3000, 100_000)
_MARK = "@@here@@"


def spoil_json(data, random_):
    """Change some nodes of a document, or its text; None if it is no JSON any more."""
    if chance(random_, 0.15):
        return _spoil_text(data, random_)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # as it is after an earlier change
        return None
    part = document
    if isinstance(document, dict) and "consolidated_metadata" in document and chance(random_, 0.5):
        part = document.get("attributes")  # few nodes beside those of the copy
    words = [spoil_node(part, random_) for _ in range(random_.choice((1, 1, 1, 2, 3)))]
    if chance(random_, 0.2):
        words.append(_mark(document, random_))
    try:
        text = json.dumps(document).encode()
    except RecursionError:  # what could be read may be too deep to be written
        return None
    if _MARK.encode() in text:
        literal = deep(random_) if chance(random_, 0.5) else random_.choice(_LITERALS)
        text = text.replace(f'"{_MARK}"'.encode(), literal, 1)
        words.append(f"{literal[:20]!r}, {len(literal)} bytes")
    return text, ", ".join(words)


def deep(random_):
    """Brackets within brackets."""
    depth = random_.choice(_DEPTHS) + random_.randrange(10)
    if chance(random_, 0.5):
        return b"[" * depth + b"]" * depth
    return b'{"a":' * depth + b"1" + b"}" * depth


def _nodes(document):
    """(container, key) of every value, without recursion: an earlier change may be a deep one."""
    containers = [document]
    while containers:
        one = containers.pop()
        for key, value in list(one.items() if isinstance(one, dict) else enumerate(one)):
            yield one, key
            if isinstance(value, (dict, list)):
                containers.append(value)


def _mark(document, random_):
    found = any_of(random_, _nodes(document))
    if found is None:
        return "nothing left,"
    holder, key = found
    holder[key] = _MARK
    return f"{key!r:.40} ="


def spoil_node(document, random_):
    """Change a value or a key of a JSON value in place; returns what was done."""
    chosen = any_of(random_, _nodes(document))
    if chosen is None:
        return "nothing left"
    holder, key = chosen
    old = holder[key]
    how = random_.random()
    if how < 0.1:
        del holder[key]
        return f"without {key!r:.40}"
    if how < 0.2 and isinstance(holder, dict):
        new = random_.choice(_TEXTS)
        holder[new] = (
            holder.pop(key) if chance(random_, 0.5) else copy.deepcopy(random_.choice(_NODES))
        )
        return f"{key!r:.40} as {new!r:.20}"
    if how < 0.3:
        other, there = any_of(random_, _nodes(document))
        holder[key] = json.loads(json.dumps(other[there]))
        return f"{key!r:.40} from {there!r:.40}"
    if how < 0.4 and isinstance(holder, list):
        holder.insert(random_.randrange(len(holder) + 1), random_.choice((old, 1, None)))
        return f"one more beside {key!r:.40}"
    holder[key] = new = copy.deepcopy(_other(old, random_))
    return f"{key!r:.40} = {new!r:.40}"


def _other(old, random_):
    """A value of the same kind, as a rule."""
    if chance(random_, 0.2):
        return random_.choice((random_.choice(_NODES), random_.choice(_TEXTS)))
    if isinstance(old, bool):
        return random_.choice((not old, None, int(old), "true"))
    if isinstance(old, (int, float)):
        near: list[Any] = [old * 2, old + 1, old - 1, old // 2, -old]
        if abs(old) < 10**300:
            near += [float(old), str(old)]
        return random_.choice((random_.choice(_NUMBERS), random_.choice(near)))
    if isinstance(old, str):
        return random_.choice(_TEXTS)
    return random_.choice(_NODES)


def _spoil_text(data, random_):
    place = random_.randrange(len(data) + 1)
    makers = (
        ("a key twice", lambda: _twice(data, random_)),
        ("cut", lambda: data[:place]),
        ("empty", lambda: b""),
        ("a byte order mark", lambda: b"\xef\xbb\xbf" + data),
        ("UTF-16", lambda: data.decode("utf-8", "replace").encode("utf-16")),
        ("Latin 1", lambda: data[:place] + b"\xff\xe9" + data[place:]),
        ("more behind it", lambda: data + random_.choice((b"x", data, b"\0" * 50))),
        ("only brackets", lambda: deep(random_)),
        ("much white space", lambda: b" " * random_.choice((1 << 19, 1 << 20, 1 << 21)) + data),
        ("many keys", lambda: data[:-1] + _many_keys() + b"}"),
        ("a comment", lambda: b"/* */" + data),
        ("bytes", lambda: random_.randbytes(random_.randrange(1, 300))),
    )
    how, make = random_.choice(makers)
    return make(), how


def _many_keys():
    return b"".join(b',"k%d":0' % number for number in range(40_000))


def _twice(data, random_):
    found = list(re.finditer(rb'"(\w+)": (\d+|"[^"]*"|true|false)', data))
    if not found:
        return data
    one = random_.choice(found)
    other = random_.choice((b"3", b"null", one[2], b"0"))
    return data[: one.start()] + b'"%s": %s, ' % (one[1], other) + data[one.start() :]
