"""Run the README's commands on 600 handwritten digits, and print how long each takes.

python scripts/demo.py [FOLDER]

The folder (default: demo) is created; an earlier demo there is continued. Then the script trains
and exports a second version while clients send requests to the server, deletes that version again,
and writes what the clients saw to FOLDER/demo.json.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from timonel.data import Dataset

TRAIN = "timonel train train.py --data data/digits"
EXPORT = "timonel export --name digits"
CONVERT = "timonel convert digits/ data/digits"
SERVE = "timonel serve digits"
MARKER = ".timonel-demo"
SWITCH_S = 60.0
RATE_PER_S = 40.0


class Demo:
    """Commands that run in one folder, with their times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.took_s: dict[str, float] = {}

    def run(self, step: str, line: str) -> None:
        """Print a command, run it and add its time to a step; a failure ends the demo."""
        print(f"$ {line}", flush=True)
        started = time.monotonic()
        with subprocess.Popen(argv_of(line), cwd=self.folder, env=ENVIRONMENT) as child:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                # The command stops its job first. A terminal has sent it the signal, too; it
                # ignores one that comes twice.
                child.send_signal(signal.SIGINT)
                child.wait()
                raise
        self.took_s[step] = self.took_s.get(step, 0.0) + time.monotonic() - started
        print(flush=True)
        if code:
            sys.exit(code)

    def read(self, line: str) -> Any:
        """Return what a command prints as JSON."""
        done = subprocess.run(
            argv_of(line), cwd=self.folder, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE
        )
        return json.loads(done.stdout)


# No process may outlive the demo, so the one that keeps TensorFlow imported must not linger.
ENVIRONMENT = {
    name: value
    for name, value in {**os.environ, "TIMONEL_WARM_LINGER": "0"}.items()
    if name != "TIMONEL_WORKSPACE"
}


def argv_of(line: str) -> list[str]:
    """Return the words of a command; ``timonel`` is that of this Python."""
    name, *words = shlex.split(line)
    assert name == "timonel"
    return [sys.executable, "-m", "timonel", *words]


class Clients:
    """Threads that request predictions until stopped, and note the version that is served."""

    def __init__(self, url: str, images: list[Path]) -> None:
        self.asked: list[tuple[float, float]] = []  # Unix time in s, latency in ms
        self.failures: list[str] = []
        self.versions: list[dict[str, float]] = []
        self._url = url
        self._bodies = [
            json.dumps({"instances": [{"b64": base64.b64encode(image.read_bytes()).decode()}]})
            for image in images
        ]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._ask, self._watch)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, version: int) -> None:
        """Wait until a version is the newest that is served."""
        deadline = time.monotonic() + SWITCH_S
        while not self.versions or self.versions[-1]["version"] != version:
            if time.monotonic() > deadline:
                sys.exit(f"the server did not switch to version {version} in {SWITCH_S:g} s")
            time.sleep(0.05)

    def _ask(self) -> None:
        number = 0
        while not self._stop.wait(1 / RATE_PER_S):
            body = self._bodies[number % len(self._bodies)].encode()
            number += 1
            began, started = time.time(), time.monotonic()
            try:
                request = f"{self._url}:predict"
                with urllib.request.urlopen(request, body, timeout=30) as answer:  # noqa: S310
                    answer.read()
            except OSError as error:
                self.failures.append(str(error))
            self.asked.append((round(began, 3), round(1000 * (time.monotonic() - started), 2)))

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            try:
                with urllib.request.urlopen(self._url, timeout=30) as answer:  # noqa: S310
                    states = json.load(answer)["model_version_status"]
            except OSError:
                continue  # the other thread counts it
            served = [int(each["version"]) for each in states if each["state"] == "AVAILABLE"]
            if served and (not self.versions or self.versions[-1]["version"] != max(served)):
                self.versions.append({"t": time.time(), "version": max(served)})

    def report(self) -> dict[str, Any]:
        """Return what the clients saw."""
        return {
            "requests": len(self.asked),
            "failed": len(self.failures),
            "failures": self.failures[:20],
            "versions": self.versions,
            "asked": self.asked,
        }


def main(folder: Path) -> None:
    """Run the demo."""
    started = time.monotonic()
    is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not (is_new or (folder / MARKER).exists()):
        sys.exit(f"{folder} contains files that are not of an earlier demo; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    demo = Demo(folder)
    print(f"$ cd {folder}", flush=True)
    if not (folder / "train.py").exists():
        demo.run("init", "timonel init image .")
    if not (folder / "data/digits/manifest.json").exists():
        demo.run("convert", CONVERT)
    demo.run("train", TRAIN)
    demo.run("export", EXPORT)
    ports = "" if is_free(8500) and is_free(8501) else " --rest-port 0 --grpc-port 0"
    try:
        demo.run("serve", f"{SERVE} --detach{ports}")
        seen = ask(demo)
    finally:
        demo.run("stop", "timonel servers stop digits")
    demo.run("lineage", "timonel lineage digits")
    seen["took_s"] = {name: round(seconds, 2) for name, seconds in demo.took_s.items()}
    (folder / "demo.json").write_text(json.dumps(seen) + "\n")
    print(f"{seen['requests']:,} requests while a version came and went, {seen['failed']} failed")
    for name, seconds in demo.took_s.items():
        print(f"{name:>12} {seconds:6.1f} s")
    print(f"{'all':>12} {time.monotonic() - started:6.1f} s")
    if seen["failed"]:
        sys.exit("requests failed: " + "; ".join(seen["failures"][:3]))


def ask(demo: Demo) -> dict[str, Any]:
    """Predict, then publish a second version under load and delete it; return what clients saw."""
    (server,) = demo.read("timonel servers --json")["servers"]
    url = f"{server['rest_url']}/v1/models/digits"
    images = held_out(demo.folder)
    demo.run("predict", f"timonel predict digits {images[0].relative_to(demo.folder)}")
    before = newest(demo)
    with Clients(url, images) as clients:
        clients.wait_for(before)
        demo.run("train again", f"{TRAIN} --set epochs=15")
        demo.run("export again", EXPORT)
        clients.wait_for(newest(demo))
        demo.run("predict", f"timonel predict digits {images[1].relative_to(demo.folder)}")
        demo.run("roll back", f"timonel models delete digits/{newest(demo)} --yes")
        clients.wait_for(before)
    return clients.report()


def newest(demo: Demo) -> int:
    """Return the number of the newest version."""
    return int(demo.read("timonel models show digits --json")["version"])


def held_out(folder: Path) -> list[Path]:
    """Return images of the test split, which training does not see."""
    dataset = Dataset.open(folder / "data/digits")
    return [folder / "digits" / each["key"] for each in dataset.examples("test")][:40]


def is_free(port: int) -> bool:
    """Whether no server listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def interrupt(*_: object) -> None:
    """End the demo as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo").absolute())
    except KeyboardInterrupt:
        sys.exit(130)
