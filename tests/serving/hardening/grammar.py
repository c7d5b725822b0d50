"""Requests over REST as somebody might write them who has half understood how."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.serving.hardening.runtime import SIGNATURES


@dataclass(frozen=True)
class Asked:
    """A request whose head is well formed; nothing else of it need be."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encoded(self) -> bytes:
        """Return the bytes to send."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: x"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


PRINTABLE = st.characters(min_codepoint=33, max_codepoint=126)
NAMES = st.sampled_from(["m", "m", "m", "m", "nope", "M", "m%3A", "%2F", "%zz", "%ff", "", "m?x"])
VERSIONS = st.sampled_from(
    ["", "", "", "", "/versions/1", "/versions/01", "/versions/9", "/versions/-1", "/versions/1x",
     "/versions/9223372036854775808", "/labels/stable", "/labels/a%3Ab", "/labels/",
     "/versions/1/labels/stable"]
)  # fmt: skip
VERBS = st.sampled_from(
    [":predict", ":predict", ":predict", ":predict", ":classify", ":regress", ":Predict", "",
     "/metadata", ":predict?x=1", ":explain", ":predict#f", ":", "/metadata/"]
)  # fmt: skip
TARGETS = st.one_of(
    st.builds("/v1/models/{}{}{}".format, NAMES, VERSIONS, VERBS),
    st.text(PRINTABLE, max_size=40).map("/v1/{}".format),
    st.text(PRINTABLE, max_size=20).map("/{}".format),
    st.sampled_from(["/v1/models", "/v1/models/", "/v1", "*", "//v1/models/m", "/livez", "/readyz",
                     "http://other/v1/models/m", "/v1/models/m/../m",
                     "/monitoring/prometheus/metrics", "/openapi.json", "/"]),
)  # fmt: skip
METHODS = st.sampled_from(
    ["POST"] * 12 + ["GET"] * 4 + ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "post", "TRACE"]
)

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.floats(),
    st.floats(-10, 10),
)
B64 = st.one_of(
    st.binary(max_size=12).map(lambda raw: base64.b64encode(raw).decode()),
    st.text(max_size=8),
).map(lambda text: {"b64": text})
VALUES = st.one_of(
    NUMBERS, st.booleans(), st.none(), st.text(max_size=6), B64, st.just({}), st.just([])
)
RECTANGLES = st.tuples(
    st.lists(st.integers(0, 4), max_size=4), st.one_of(NUMBERS, st.text(max_size=3), st.booleans())
).map(lambda pair: _filled(*pair))
RAGGED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
TENSORS = st.one_of(RECTANGLES, RAGGED)
KEYS = st.sampled_from(["x", "a", "b", "inputs", "y", "", "b64", "x" * 300])
NAMED = st.dictionaries(KEYS, TENSORS, max_size=3)
ROWS = st.one_of(
    TENSORS, NAMED, st.lists(NAMED, max_size=3), st.lists(st.one_of(NAMED, VALUES), max_size=4)
)
FEATURES = st.dictionaries(
    st.text(max_size=3), st.one_of(VALUES, st.lists(VALUES, max_size=3)), max_size=3
)
EXAMPLES = st.one_of(st.lists(st.one_of(FEATURES, VALUES), max_size=4), VALUES)
SIGNATURE_NAMES = st.one_of(st.sampled_from([*SIGNATURES, "", "nope"]), VALUES)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "signature_name": SIGNATURE_NAMES,
        "instances": ROWS,
        "inputs": ROWS,
        "examples": EXAMPLES,
        "context": st.one_of(FEATURES, VALUES),
        "other": RAGGED,
    },
)
JSON = st.one_of(OBJECTS, OBJECTS, OBJECTS, RAGGED)
DEEP = st.tuples(
    st.sampled_from(["[", '{"a":', '[{"inputs":', "[[],"]),
    st.sampled_from([10, 100, 1000, 20_000]),
    st.sampled_from(["", "1", "]", "1]]]}"]),
    st.sampled_from(["", '{"instances":', '{"inputs":{"x":']),
).map(lambda parts: (parts[3] + parts[0] * parts[1] + parts[2]).encode())


INTEGERS = {
    f"DT_{'U' if low == 0 else ''}INT{bits}": st.integers(low, 2**used - 1)
    for bits in (8, 16, 32, 64)
    for low, used in ((0, bits), (-(2 ** (bits - 1)), bits - 1))
}
OF_TYPE = INTEGERS | {
    "DT_FLOAT": st.floats(width=32),
    "DT_DOUBLE": st.floats(),
    "DT_BOOL": st.booleans(),
    "DT_STRING": st.one_of(
        st.text(max_size=5),
        st.binary(max_size=5).map(lambda raw: {"b64": base64.b64encode(raw).decode()}),
    ),
}


@st.composite
def fitting(draw):
    """Draw a request that fits one of the signatures, or nearly."""
    dtype = draw(st.sampled_from(sorted(OF_TYPE)))
    shape = draw(st.lists(st.integers(1, 3), max_size=4))
    size = 1
    for each in shape:
        size *= each
    values = iter(draw(st.lists(OF_TYPE[dtype], min_size=size, max_size=size)))
    tensor = _shaped(shape, values)
    content = {"signature_name": f"echo_{dtype}"}
    kind = draw(st.integers(0, 5))
    if kind < 2 or not shape:
        content["inputs"] = tensor
    elif kind == 2:
        content["inputs"] = {"x": tensor}
    elif kind == 3:
        content["instances"] = [{"x": row} for row in tensor]
    else:
        content["instances"] = tensor
    return content


@st.composite
def examples(draw):
    """Draw a request for Classify or Regress that is right."""
    rows = draw(
        st.lists(
            st.dictionaries(
                st.text(max_size=3),
                st.one_of(
                    st.lists(st.floats(-9, 9).map(lambda x: x + 0.5), max_size=3),
                    st.lists(st.integers(-9, 9), max_size=3),
                    st.lists(st.text(max_size=3), max_size=3),
                ),
                max_size=3,
            ),
            min_size=1,
            max_size=3,
        )
    )
    return {"signature_name": draw(st.sampled_from(["classes", "value"])), "examples": rows}


def _shaped(shape, values):
    if not shape:
        return next(values)
    return [_shaped(shape[1:], values) for _ in range(shape[0])]


def _filled(shape, value):
    for size in reversed(shape):
        value = [value] * size
    return value


def _dumped(value):
    # Lone surrogates stay as escapes, NaN and Infinity as bare tokens.
    return json.dumps(value).encode()


@st.composite
def bodies(draw):
    """Draw a body: JSON, nearly JSON, or nothing of the kind."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(DEEP)
    if kind == 1:
        return draw(st.binary(max_size=60))
    content = bytearray(_dumped(draw(JSON)))
    if kind < 8:
        for _ in range(draw(st.integers(1, 3))):
            start = draw(st.integers(0, len(content)))
            end = min(len(content), start + draw(st.sampled_from([0, 1, 1, 2, 8])))
            content[start:end] = draw(
                st.one_of(
                    st.binary(max_size=3),
                    st.sampled_from(
                        [b"NaN", b"-Infinity", b"1e999", b"-", b"\xff", b"\\ud800", b"[", b"{",
                         b"\0", b'"', b"00", b"1.", b"/*", b"\xef\xbb\xbf", b"9" * 400]
                    ),
                )
            )  # fmt: skip
    return bytes(content)


HEADERS = st.lists(
    st.sampled_from(
        [
            ("Content-Type", "application/json"),
            ("Content-Type", "application/x-protobuf"),
            ("Content-Type", "multipart/form-data; boundary=x"),
            ("Accept", "text/html"),
            ("Accept-Encoding", "gzip, br;q=0"),
            ("Content-Encoding", "gzip"),
            ("Content-Encoding", "identity, zstd"),
            ("Expect", "100-continue"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("traceparent", "\xff-\xfe"),
            ("Origin", "https://other"),
            ("Authorization", "Bearer \xe9"),
            ("Inference-Header-Content-Length", "7"),
            ("X-Forwarded-For", "1.2.3.4, \x01"[:8]),
            ("Range", "bytes=0-1"),
        ]
    ),
    max_size=3,
    unique_by=lambda header: header[0],
).map(tuple)


@st.composite
def requests(draw):
    """Draw a request, every other one right; a body that is said to be packed mostly is."""
    kind = draw(st.integers(0, 9))
    if kind < 4:
        return Asked("POST", "/v1/models/m:predict", (), _dumped(draw(fitting())))
    if kind == 4:
        verb = draw(st.sampled_from(["classify", "regress"]))
        return Asked("POST", f"/v1/models/m:{verb}", (), _dumped(draw(examples())))
    headers, body = draw(HEADERS), draw(bodies())
    if ("Content-Encoding", "gzip") in headers and draw(st.integers(0, 3)):
        body = gzip.compress(body, 1)[: draw(st.sampled_from([None, None, 15, -3]))]
    return Asked(draw(METHODS), draw(TARGETS), headers, body)
