"""Running commands and watching them: wall time and peak memory of a whole process tree."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_MARK = "BENCHMARK_MARK"


@dataclass
class Measured:
    """One command that ended."""

    wall_s: float
    peak_mib: float
    returncode: int
    started_at: float
    output: str = ""
    marks: dict[str, float] = field(default_factory=dict)


@dataclass
class _Peak:
    mib: float = 0.0


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Measured:
    """Run ``command`` to its end; memory is the largest sum of proportional set sizes seen."""
    return run_all([command], envs=[env or {}], cwd=cwd)[0]


def run_all(
    commands: Sequence[Sequence[str]], *, envs: Sequence[Mapping[str, str]], cwd: Path | None = None
) -> list[Measured]:
    """Run ``commands`` at the same time; each result's peak is that of all of them together."""
    started_at, begin = time.time(), time.perf_counter()
    mark = uuid.uuid4().hex
    processes = [
        subprocess.Popen(
            list(command), env={**os.environ, **env, _MARK: mark}, cwd=cwd, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for command, env in zip(commands, envs, strict=True)
    ]  # fmt: skip
    runtime = {**os.environ, **envs[0]}.get("XDG_RUNTIME_DIR")
    with watch(mark, Path(runtime) if runtime else None) as peak:
        outputs = _collect(processes)
        wall_s = time.perf_counter() - begin
    return [
        Measured(wall_s, peak.mib, process.returncode, started_at, output, _marks(output))
        for process, output in zip(processes, outputs, strict=True)
    ]


@contextlib.contextmanager
def watch(mark: str, runtime: Path | None = None, *, period_s: float = 0.25) -> Iterator[_Peak]:
    """Follow the memory of every process that carries ``mark`` during the block.

    A job's processes are no children of the command that submitted it, so they are found by an
    environment variable that all of them inherit. Warm parents inherit none; they and what they
    have forked are known by the ``runtime`` folder in which the parents work.
    """
    peak, done = _Peak(), threading.Event()

    def sample() -> None:
        while not done.wait(period_s):
            peak.mib = max(peak.mib, _used_mib(f"{_MARK}={mark}".encode(), runtime))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def machine() -> str:
    """Describe the machine in one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory_gib = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """Return the commit that is measured, with a mark if files differ from it."""
    root = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def _collect(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    outputs = [""] * len(processes)

    def read(index: int) -> None:
        outputs[index] = processes[index].communicate()[0]
        if processes[index].returncode:
            # The others would wait for it, some of them for ever.
            for other in processes:
                other.kill()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What failed by itself explains more than what was killed for it.
    ended = sorted(zip(processes, outputs, strict=True), key=lambda pair: pair[0].returncode < 0)
    for process, output in ended:
        if process.returncode:
            sys.stderr.write(output[-3000:])
            what = " ".join(Path(word).name for word in process.args[:3])
            raise SystemExit(f"{what} ended with {process.returncode}")
    return outputs


def _marks(output: str) -> dict[str, float]:
    found = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "MARK":
            found[words[1]] = float(words[2])
    return found


def marked(mark: str) -> list[int]:
    """Return the processes that have ``mark`` in their environment, and their descendants."""
    found = set()
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            children.setdefault(process.ppid(), []).append(process.pid)
            if mark.encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.add(process.pid)
    looked_at = list(found)
    while looked_at:
        new = set(children.get(looked_at.pop(), ())) - found
        found |= new
        looked_at += new
    return sorted(found)


def used_mib(pids: Iterable[int]) -> float:
    """Return the sum of the proportional set sizes of processes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += _pss_bytes(pid)
    return total / 2**20


def _used_mib(mark: bytes, runtime: Path | None) -> float:
    pids = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                pids.add(process.pid)
            elif runtime is not None and Path(process.cwd()).is_relative_to(runtime):
                pids.add(process.pid)
                pids.update(child.pid for child in process.children(recursive=True))
    return used_mib(pids)


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
