"""The demo: the commands of the README from an empty folder to the end, and Ctrl-C in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

DEMO = [sys.executable, "-u", str(Path(__file__).parents[2] / "scripts" / "demo.py")]
COMMANDS = (
    "init image",
    "convert digits/ data/digits",
    "train train.py",
    "export --name digits",
    "serve digits",
    "predict digits",
    "models delete digits/2",
    "servers stop digits",
    "lineage digits",
)


@pytest.mark.process
@pytest.mark.timeout(700)
def test_the_whole_demo_and_what_it_leaves(here: Path) -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "\x1b[" not in out
    positions = [out.index(f"$ timonel {command}") for command in COMMANDS]
    assert positions == sorted(positions)
    seen = json.loads((here / "demo" / "demo.json").read_text())
    assert seen["failed"] == 0
    assert seen["requests"] > 100
    assert [entry["version"] for entry in seen["versions"]] == [1, 2, 1]
    assert set(seen["took_s"]) > {"convert", "train", "export", "serve", "predict"}
    assert "TensorFlow binary is optimized" not in out + done.stderr
    wait_until_alone(here)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_is_continued(
    number: signal.Signals, here: Path
) -> None:
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert any("$ timonel train" in line for line in child.stdout)
        os.kill(child.pid, number)
        child.communicate(timeout=120)
    assert child.returncode == 130
    wait_until_alone(here)
    again = subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with again:
        assert again.stdout is not None
        lines = iter(again.stdout.readline, "")
        assert next(line for line in lines if "timonel" in line).startswith("$ timonel train")
        os.killpg(again.pid, signal.SIGINT)
        again.communicate(timeout=120)
    wait_until_alone(here)


@pytest.mark.process
def test_a_folder_with_other_files_is_refused(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("x")
    for place in ("mine", "mine/thesis.tex"):
        done = subprocess.run([*DEMO, place], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "name another folder" in done.stderr
    assert [path.name for path in (here / "mine").iterdir()] == ["thesis.tex"]


def wait_until_alone(folder: Path, timeout_s: float = 60.0) -> None:
    """Wait until no other process works in or below a folder."""
    deadline = time.monotonic() + timeout_s
    while others := [
        (p.pid, p.info["cmdline"])
        for p in psutil.process_iter(["cwd", "cmdline"])
        if p.pid != os.getpid() and f"{p.info['cwd']}/".startswith(f"{folder}/")
    ]:
        assert time.monotonic() < deadline, others
        time.sleep(0.2)
