"""The main path with a workspace in a bucket, against one in a local folder.

Convert, train with two workers and a checkpoint every 50 steps, export, serve until ready: with
each workspace in turn, and the ratio is taken pair by pair. The bucket is an S3 server on this
machine. Then another cache folder lists, traces and serves: what is downloaded is counted.

usage: workspace.py [--pairs 3] [--epochs 20] [--output benchmarks/results/workspace.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import _main_job
import _measure
import _s3
from _main_job import HERE, TIMONEL, free_port

GOAL = 1.2
STEPS = ("convert", "train", "export", "serve until ready", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "workspace.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name, server() as url:
        folder = Path(name)
        os.chdir(folder)
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
        }
        (folder / "runtime").mkdir(mode=0o700)
        _main_job.prepare(folder)
        request = urllib.request.Request(f"{url}/team", method="PUT")
        urllib.request.urlopen(request).close()
        pairs = []
        for number in range(options.pairs):
            os.environ["XDG_CACHE_HOME"] = str(folder / f"cache-{number}")
            places = (f"s3://team/w{number}", str(folder / f"w{number}"))
            pairs.append([path(place, options.epochs) for place in places])
            print(pairs[-1], flush=True)
        writers = downloads(url)
        os.environ["XDG_CACHE_HOME"] = str(folder / "elsewhere")
        place = "s3://team/w0"
        readers_s = timed(lambda: [again(place) for _ in range(2)])
        readers = downloads(url)
    page = report(pairs, writers, {k: n - writers.get(k, 0) for k, n in readers.items()}, readers_s)
    print(page)
    options.output.write_text(page)


def path(place: str, epochs: int) -> dict[str, float]:
    """Return the seconds of each step with the workspace at ``place``."""
    train = ["--data", "data", "--workers", "2", "--checkpoint-steps", "50"]
    took = {
        "convert": timed(lambda: run(place, "convert", "digits", "data", "--overwrite")),
        "train": timed(
            lambda: run(place, "train", "train.py", *train, "--", "--epochs", str(epochs))
        ),
        "export": timed(lambda: run(place, "export", "--name", "digits")),
        "serve until ready": serve(place),
    }
    return {**took, "all": sum(took.values())}


def again(place: str) -> None:
    """List, trace and serve."""
    for words in (("runs",), ("lineage", "digits"), ("models",)):
        run(place, *words)
    serve(place)


def run(place: str, *words: str) -> None:
    done = _measure.run([TIMONEL, "-w", place, *words])
    if done.returncode:
        sys.exit(f"{words} failed:\n{done.output}")


def serve(place: str) -> float:
    """Return the seconds until a server of the model is ready."""
    ports = {name: free_port() for name in ("--rest-port", "--grpc-port")}
    words = [word for name, port in ports.items() for word in (name, str(port))]
    begin = time.perf_counter()
    with subprocess.Popen(
        [TIMONEL, "-w", place, "serve", "digits", *words], stdout=subprocess.DEVNULL
    ) as process:
        url = f"http://127.0.0.1:{ports['--rest-port']}/v1/models/digits"
        while "AVAILABLE" not in answer(url):
            if process.poll() is not None:
                sys.exit("the server ended")
            time.sleep(0.05)
        took = time.perf_counter() - begin
        process.terminate()
    return took


def answer(url: str) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
        return str(response.read().decode())
    return ""


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Start an S3 server; yield its URL."""
    port = free_port()
    with subprocess.Popen([sys.executable, str(HERE / "_s3.py"), str(port)]) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def downloads(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url + _s3.COUNTS) as response:
        counts: dict[str, int] = json.load(response)
    # Each command reads this document of 40 bytes to check the format.
    return {key: n for key, n in counts.items() if not key.endswith("/FORMAT")}


def report(
    pairs: list[list[dict[str, float]]],
    writers: dict[str, int],
    readers: dict[str, int],
    readers_s: float,
) -> str:
    """Return the result as a Markdown page."""
    rows = []
    for step in STEPS:
        bucket, folder = ([pair[side][step] for pair in pairs] for side in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(bucket, folder, strict=True))
        goal = f"{GOAL} or less" if step == "all" else ""
        rows.append(
            f"| {step} | {statistics.median(bucket):.3g} s | {statistics.median(folder):.3g} s "
            f"| {ratio:.2f} | {goal} |"
        )
    read = {key: n for key, n in readers.items() if n}
    intro = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()} on "
        f"{_measure.machine()}. The bucket is on an S3 server of the same machine, which takes "
        "processor time from what is measured. Both sides ran in turn; the ratio is the median of "
        f"the ratios of {len(pairs)} pairs. The machine is shared: read the ratios, not the times."
    )
    counted = (
        f"Objects downloaded by the machine that wrote them: {len(writers)}, more than once: "
        f"{sum(n > 1 for n in writers.values())}. By another cache folder that twice listed runs "
        f"and models, showed the lineage and served the model ({readers_s:.3g} s): {len(read)}, "
        f"more than once: {sum(n > 1 for n in read.values())}."
    )
    head = [
        "# A workspace in a bucket against one in a local folder",
        "",
        intro,
        "",
        "| step | bucket | folder | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, "", counted, ""])


if __name__ == "__main__":
    main()
