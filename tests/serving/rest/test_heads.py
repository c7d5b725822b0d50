"""Which requests are answered directly, by their heads."""

from __future__ import annotations

import pytest

from timonel.serving.monitoring.observation import TraceParent
from timonel.serving.rest.heads import Head, read_head
from timonel.serving.servables import ModelSpec

TARGET = "/v1/models/m:predict"
LENGTH = "Content-Length: 7"


def read(*headers, line=f"POST {TARGET} HTTP/1.1"):
    return read_head("\r\n".join((line, "Host: x", *headers)).encode("latin-1"))


@pytest.mark.parametrize(
    ("target", "spec"),
    [
        (TARGET, ModelSpec("m")),
        ("/V1/MODELS/M:predict", ModelSpec("M")),
        ("/v1/models/a%20b:predict", ModelSpec("a b")),
        ("/v1/models/m/versions/12:predict", ModelSpec("m", 12)),
        ("/v1/models/m/labels/best:predict", ModelSpec("m", None, "best")),
        ("/v1/models/m?a=b:predict", ModelSpec("m?a=b")),
    ],
)
def test_a_prediction_is_read(target, spec):
    assert read(LENGTH, line=f"POST {target} HTTP/1.1") == Head(spec, 7, "", None, b"x")


def test_what_headers_say_is_read():
    head = read(
        "CONTENT-length: 70", "content-TYPE: text/plain; charset=utf-8", "Connection: Keep-Alive",
        "Accept: */*", "traceparent: 00-1-2-01", "tracestate: a=b", "X-Any: thing",
    )  # fmt: skip
    trace = TraceParent("00-1-2-01", "a=b")
    assert head == Head(ModelSpec("m"), 70, "text/plain; charset=utf-8", trace, b"x")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Transfer-Encoding: chunked",),
        (LENGTH, "Connection: close"),
        (LENGTH, "Connection: upgrade", "Upgrade: websocket"),
        (LENGTH, "Connection: keep-alive, close"),
        (LENGTH, "Expect: 100-continue"),
        (LENGTH, "Origin: http://localhost"),
        (LENGTH, "Content-Encoding: gzip"),
        (LENGTH, "Transfer-Encoding: chunked"),
        (LENGTH, LENGTH),
        ("Content-Length: -7",),
        ("Content-Length: seven",),
        ("Content-Length: 7, 7",),
        (LENGTH, " folded: more"),
        (LENGTH, "no colon"),
        (LENGTH, "bad name: x"),
    ],
)
def test_what_is_not_one_plain_body_is_left(headers):
    assert read(*headers) is None


@pytest.mark.parametrize(
    "line",
    [
        f"GET {TARGET} HTTP/1.1",
        f"post {TARGET} HTTP/1.1",
        f"POST {TARGET} HTTP/1.0",
        f"POST {TARGET} HTTP/2.0",
        f"POST {TARGET}",
        f"POST http://h{TARGET} HTTP/1.1",
        f"POST /prefix{TARGET} HTTP/1.1",
        f"POST {TARGET}/ HTTP/1.1",
        f"POST {TARGET}#part HTTP/1.1",
        "POST /v1/models/m#part:predict HTTP/1.1",
        "POST /v1/models/m:classify HTTP/1.1",
        "POST /v1/models/m/versions/99999999999999999999:predict HTTP/1.1",
        "POST /v2/models/m/infer HTTP/1.1",
        "GET /v1/models/m HTTP/1.1",
        "",
        "\r\n",
    ],
)
def test_what_is_no_prediction_is_left(line):
    assert read(LENGTH, line=line) is None


def test_half_a_head_is_left():
    assert read_head(b"POST /v1/models/m:predict HT") is None
