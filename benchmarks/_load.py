"""Load on a server: wrk for REST, h2load for gRPC, the same for every server."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _cores
import numpy as np
from _jobs import BenchmarkError

_LUA = Path(__file__).parent / "scripts" / "post.lua"
_NEEDED = {"wrk": "wrk", "h2load": "nghttp2-client"}
_MOST_CONNECTIONS = 4


@dataclass(frozen=True)
class Sample:
    """What one window found.

    Attributes:
        rate: Requests answered each second.
        p50_ms: Half of the answers took less.
        p99_ms: 99 of 100 took less.
    """

    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        url: The whole URL.
        body: The file that is sent: a JSON document, or a framed protobuf message.
        answer_bytes: Bytes of a right answer's body at least.
        headers: More headers, as ``name: value``.
    """

    url: str
    body: Path
    answer_bytes: int
    headers: tuple[str, ...] = ()


def require_tools() -> None:
    """Raise if a program is missing; the message says how to get it."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        packages = " ".join(_NEEDED[name] for name in missing)
        raise SystemExit(f"expected {' and '.join(missing)}: sudo apt install {packages}")


def rest(target: Target, concurrency: int, seconds: float) -> Sample:
    """Send as fast as ``concurrency`` connections are answered."""
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{max(1, round(seconds))}s", "--latency",
               "--timeout", "30s", "-s", str(_LUA), target.url]  # fmt: skip
    output = _run(command, seconds, {"BODY": str(target.body)})
    told = json.loads(output.strip().rpartition("\n")[2])
    if not told["requests"]:
        raise BenchmarkError(f"no answer in {seconds:g} s")
    if told["failed"]:
        raise BenchmarkError(f"{told['failed']} of {told['requests']} requests failed")
    rate = 1e6 * told["requests"] / told["duration_us"]
    return Sample(rate, told["p50_us"] / 1000, told["p99_us"] / 1000)


def grpc(target: Target, concurrency: int, seconds: float, log: Path) -> Sample:
    """Send as fast as requests under way are answered, on up to four connections.

    A client of gRPC sends many requests over each connection; a single one would leave all but
    one of several processes that share a port without work.
    """
    headers = ["te: trailers", "content-type: application/grpc", *target.headers]
    streams = concurrency // _MOST_CONNECTIONS
    return _h2load(
        target, ["-c", str(_MOST_CONNECTIONS), "-m", str(streams)], headers, seconds, log
    )


def rest_at_rate(
    target: Target, concurrency: int, rate: float, seconds: float, log: Path
) -> Sample:
    """Send at a steady rate, spread over ``concurrency`` connections."""
    each = max(1, round(rate / concurrency))
    shape = ["--h1", "-c", str(concurrency), "--rps", str(each)]
    return _h2load(target, shape, ["content-type: application/json"], seconds, log)


def _h2load(
    target: Target, shape: Sequence[str], headers: Sequence[str], seconds: float, log: Path
) -> Sample:
    log.unlink(missing_ok=True)  # it appends
    given = [word for header in headers for word in ("-H", header)]
    command = ["h2load", "-t", "1", *shape, "-D", str(max(1, round(seconds))), "-d",
               str(target.body), f"--log-file={log}", *given, target.url]  # fmt: skip
    output = _run(command, seconds, {})
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    failed = sum(status != "200" for _, status, _ in lines)
    if not lines:
        raise BenchmarkError(f"no answer in {seconds:g} s")
    if failed:
        raise BenchmarkError(f"{failed} of {len(lines)} requests failed")
    # An error of gRPC is a status in the trailers, where h2load does not look: no body came then.
    received = _data_bytes(output)
    if received < 0.99 * len(lines) * target.answer_bytes:
        raise BenchmarkError(
            f"{len(lines)} answers have {received} bytes, expected {target.answer_bytes} each"
        )
    begun, took = (np.array([int(line[at]) for line in lines]) for at in (0, 2))
    # From the first request to the last answer that came in time.
    span_us = (begun + took).max() - begun.min()
    p50, p99 = np.percentile(took, [50, 99]) / 1000
    return Sample(1e6 * len(lines) / float(span_us), float(p50), float(p99))


def framed(message: bytes) -> bytes:
    """Return a message as gRPC puts it into an HTTP/2 stream."""
    return b"\0" + struct.pack(">I", len(message)) + message


def _data_bytes(output: str) -> int:
    for line in output.splitlines():
        if line.startswith("traffic:"):
            return int(line.rpartition("(")[2].partition(")")[0])
    raise BenchmarkError(f"h2load told of no traffic: {output[-300:]}")


def _run(command: Sequence[str], seconds: float, env: dict[str, str]) -> str:
    ended = subprocess.run(
        [*_cores.pinned(_cores.client()), *command], env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 + 3 * seconds, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise BenchmarkError(f"{command[0]} ended with {ended.returncode}: {ended.stdout[-300:]}")
    return ended.stdout
