"""The main path against the same work written by hand, side by side in one run.

Each pair is run in turn (ours, by hand, ours, by hand, ...), and the ratio is taken pair by pair,
so that a machine whose speed drifts does not favour either. Times are wall times of whole
commands; memory is the peak of the proportional set sizes of all processes of a command.

usage: main_path.py [--pairs 3] [--epochs 6] [--output benchmarks/results/main_path.md]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _main_job
import _measure
from _main_job import BATCH, HERE, TIMONEL, free_port, step_ms
from _measure import Measured


@dataclass
class Row:
    """One line of the result: the same figure of ours and of the work by hand, pair by pair."""

    what: str
    unit: str
    ours: list[float]
    by_hand: list[float]
    goal: str = ""

    @property
    def ratio(self) -> float:
        """The median of the ratios of the pairs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.by_hand, strict=True))

    def markdown(self) -> str:
        """Return the line as a row of a Markdown table."""
        ours, by_hand = statistics.median(self.ours), statistics.median(self.by_hand)
        return (
            f"| {self.what} | {ours:.3g} {self.unit} | {by_hand:.3g} {self.unit} "
            f"| {self.ratio:.2f} | {self.goal} |"
        )


def main() -> None:
    """Measure everything, print the table and write it with the machine and the commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "main_path.md")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as folder:
        rows = measure(Path(folder), options.pairs, options.epochs)
    table = report(rows)
    print(table)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(table)


def measure(folder: Path, pairs: int, epochs: int) -> list[Row]:
    """Measure all steps in ``folder`` and return their rows."""
    os.environ["TIMONEL_WORKSPACE"] = str(folder / "workspace")
    # Warm parents of its own: none is there at first, and their memory can be counted.
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "runtime")
    (folder / "runtime").mkdir(mode=0o700)
    records = _main_job.prepare(folder)
    rows = convert_rows(folder, pairs)
    rows += train_rows(folder, pairs, epochs, records)
    rows += serve_rows(folder, pairs)
    return rows


def convert_rows(folder: Path, pairs: int) -> list[Row]:
    """Raw files to shards."""

    def ours() -> Measured:
        shutil.rmtree(folder / "data", ignore_errors=True)
        return _main_job.convert(folder)

    def by_hand() -> Measured:
        shutil.rmtree(folder / "bare-data", ignore_errors=True)
        return _main_job.convert_by_hand(folder)

    return wall_and_memory("convert 1,797 images", *in_turn(ours, by_hand, pairs))


def train_rows(folder: Path, pairs: int, epochs: int, records: int) -> list[Row]:
    """Two workers: start, step time and the whole command."""

    def ours_cold() -> Measured:
        # A runtime folder of its own holds no warm parent yet.
        with tempfile.TemporaryDirectory(prefix="timonel-run-") as runtime:
            env = {"XDG_RUNTIME_DIR": runtime, "TIMONEL_WARM_LINGER": "0"}
            return _main_job.train_ours(folder, epochs, env)

    def ours_warm() -> Measured:
        return _main_job.train_ours(folder, epochs, {})

    def by_hand() -> Measured:
        return _main_job.train_by_hand(folder, records, epochs)

    # Leaves a warm parent behind, as an earlier job of the user's would.
    _main_job.train_ours(folder, 1, {})
    warm, bare = in_turn(ours_warm, by_hand, pairs)
    cold, bare_again = in_turn(ours_cold, by_hand, pairs)
    rows = [
        Row(
            "start of a two-worker job, after an earlier job", "s",
            [m.marks["ready"] - m.started_at for m in warm],
            [m.marks["ready"] - m.started_at for m in bare], "0.33 or less",
        ),
        Row(
            "start of a two-worker job, the first one", "s",
            [m.marks["ready"] - m.started_at for m in cold],
            [m.marks["ready"] - m.started_at for m in bare_again],
        ),
        Row(
            "step time, two workers", "ms",
            [m.marks["step_ms"] for m in warm + cold],
            [step_ms(m.output, records // BATCH) for m in bare + bare_again], "1.05 or less",
        ),
    ]  # fmt: skip
    rows += wall_and_memory("train, after an earlier job", warm, bare)
    return rows + wall_and_memory("train, the first one", cold, bare_again)


def serve_rows(folder: Path, pairs: int) -> list[Row]:
    """Export, and from a stopped server to the first answer."""
    image = next((folder / "digits").rglob("*.png"))

    def exported() -> Measured:
        return _measure.run([TIMONEL, "export", "--name", "digits"])

    versions = [exported() for _ in range(pairs)]
    newest = max((folder / "workspace/models/digits").glob("[0-9]*"), key=lambda p: int(p.name))

    def ours() -> Measured:
        return serve_ours(image)

    def by_hand() -> Measured:
        return _measure.run(
            [sys.executable, str(HERE / "bare/load_and_call.py"), str(newest), str(image)]
        )

    served, bare = in_turn(ours, by_hand, pairs)
    loads = [m.marks["answered"] - m.started_at for m in bare]
    return [
        Row(
            "export: check on held-out raw files and publish (by hand: load and call once)", "s",
            [m.wall_s for m in versions], loads,
        ),
        Row(
            "serve: from start to the first answer", "s",
            [m.marks["answered"] - m.started_at for m in served], loads,
        ),
        Row(
            "serve: peak memory", "MiB",
            [m.peak_mib for m in served], [m.peak_mib for m in bare],
        ),
    ]  # fmt: skip


def serve_ours(image: Path) -> Measured:
    """Start ``timonel serve``, ask it once as soon as it answers, and stop it."""
    rest, grpc = free_port(), free_port()
    mark = f"bench-{time.time()}"
    started_at = time.time()
    env = {**os.environ, "BENCHMARK_MARK": mark}
    server = subprocess.Popen(
        [TIMONEL, "serve", "digits", "--rest-port", str(rest), "--grpc-port", str(grpc)],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with _measure.watch(mark) as peak:
        try:
            answered = ask_until_answered(rest, image, server)
            time.sleep(0.6)  # two samples of the memory
        finally:
            server.terminate()
            server.wait(30)
    return Measured(answered - started_at, peak.mib, 0, started_at, "", {"answered": answered})


def ask_until_answered(port: int, image: Path, server: subprocess.Popen[bytes]) -> float:
    """Ask for one prediction until it comes; return when it came."""
    import base64
    import urllib.error
    import urllib.request

    body = {"instances": [{"b64": base64.b64encode(image.read_bytes()).decode()}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/digits:predict", json.dumps(body).encode()
    )
    while server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["predictions"]
                return time.time()
        except urllib.error.URLError:
            time.sleep(0.02)
    raise SystemExit("the server ended before it answered")


def in_turn(
    ours: Callable[[], Measured], by_hand: Callable[[], Measured], pairs: int
) -> tuple[list[Measured], list[Measured]]:
    """Run both ``pairs`` times, in turn."""
    results: tuple[list[Measured], list[Measured]] = ([], [])
    for _ in range(pairs):
        results[0].append(ours())
        results[1].append(by_hand())
    return results


def wall_and_memory(what: str, ours: list[Measured], by_hand: list[Measured]) -> list[Row]:
    """Return the two rows every step has."""
    return [
        Row(what, "s", [m.wall_s for m in ours], [m.wall_s for m in by_hand]),
        Row(
            f"{what}: peak memory", "MiB", [m.peak_mib for m in ours], [m.peak_mib for m in by_hand]
        ),
    ]


def report(rows: list[Row]) -> str:
    """Return the result as a Markdown page."""
    intro = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()} on "
        f"{_measure.machine()}. Both sides ran in turn in one run; the ratio is the median of the "
        "ratios of the pairs, ours divided by the work by hand. The machine is shared: read the "
        "ratios, not the times."
    )
    head = [
        "# The main path against the same work by hand",
        "",
        intro,
        "",
        "| what | timonel | by hand | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row.markdown() for row in rows), ""])


if __name__ == "__main__":
    main()
