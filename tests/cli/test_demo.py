"""The demo: its parts with what they meet, and the whole of it, from an empty folder to the end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.cli.conftest import Timonel
from timonel.cli import project
from timonel.cli.demo import load as load_module
from timonel.cli.demo import story
from timonel.cli.demo.load import LoadGenerator, LoadStats
from timonel.cli.demo.report import DemoResult, next_lines
from timonel.cli.demo.shell import Shell, to_argv
from timonel.errors import AlreadyExistsError, Interrupted, TimonelError
from timonel.storage import find_workspace

COMMANDS = (
    "init image",
    "convert digits/ data/digits",
    "train train.py",
    "export --name digits",
    "serve digits",
    "predict digits",
    "models delete digits/2",
    "lineage digits/1",
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A prompt that writes into memory."""
    made = Shell(tmp_path, Console(file=io.StringIO(), width=80))
    yield made
    made.close()


def said(shell: Shell) -> str:
    file = shell.out.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_command_is_echoed_run_and_timed(shell: Shell) -> None:
    shell.run("touch a && touch b", step="touch")
    assert said(shell).startswith("$ touch a && touch b\n")
    assert {path.name for path in shell.folder.iterdir()} == {"a", "b"}
    assert shell.took_s["touch"] > 0


def test_timonel_is_this_installation() -> None:
    assert to_argv("timonel runs 'a b'") == [sys.executable, "-m", "timonel", "runs", "a b"]


def test_a_command_that_fails_ends_the_demo(shell: Shell) -> None:
    with pytest.raises(TimonelError, match="exit code 3"):
        shell.run("exit 3", step="fail")


@pytest.mark.parametrize(("line", "is_reported"), [("exit 130", False), ("timonel runs", True)])
def test_ctrl_c_is_told_once(line, is_reported, shell: Shell, monkeypatch) -> None:
    # A command of timonel has said so itself; any other leaves it to the demo.
    monkeypatch.setattr("timonel.cli.demo.shell.to_argv", lambda _: ["sh", "-c", "exit 130"])
    with pytest.raises(Interrupted) as raised:
        shell.run(line, step="interrupted")
    assert raised.value.is_reported is is_reported


def test_ctrl_c_while_a_command_runs_waits_for_its_end(shell: Shell, monkeypatch) -> None:
    code = "trap 'sleep 0.3; touch tidied; exit 130' INT; touch up; while :; do sleep 0.05; done"
    monkeypatch.setattr("timonel.cli.demo.shell.to_argv", lambda _: ["sh", "-c", code])

    def interrupt() -> None:
        while not (shell.folder / "up").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted) as raised:
        shell.run("timonel convert a b", step="convert")
    thread.join()
    assert raised.value.is_reported
    assert (shell.folder / "tidied").exists()


def test_what_runs_in_the_background_ends_with_the_shell(shell: Shell) -> None:
    lines: list[str] = []
    child = shell.background("echo up; exec sleep 100", lines.append)
    while lines != ["up"]:
        time.sleep(0.01)
    shell.close()
    assert child.poll() is not None


def test_lines_from_the_background_wait_for_the_command_that_runs(shell: Shell) -> None:
    lines: list[str] = []
    shell.background("echo up; while [ ! -e go ]; do sleep 0.05; done; echo late", lines.append)
    while lines != ["up"]:
        time.sleep(0.01)
    waiting = threading.Thread(
        target=shell.run, args=("touch go && until [ -e done ]; do sleep 0.05; done",),
        kwargs={"step": "lineage"},
    )  # fmt: skip
    waiting.start()
    while shell._children[0].poll() is None:
        time.sleep(0.01)
    assert lines == ["up"]
    (shell.folder / "done").touch()
    waiting.join()
    while lines != ["up", "late"]:
        time.sleep(0.01)


@pytest.fixture
def result(tmp_path: Path) -> DemoResult:
    """A demo that has ended, after two training runs."""
    workspace = find_workspace(tmp_path / "demo" / ".timonel")
    return DemoResult(tmp_path / "demo", workspace, "digits", story.TRAIN, LoadStats(), (1, 2), {})


def test_what_to_try_next_begins_with_finding_timonel(result: DemoResult, monkeypatch) -> None:
    scripts = Path(sys.executable).parent
    monkeypatch.chdir(scripts.parents[1])
    first, second, *_ = next_lines(result, "train-1", path="/nowhere")
    assert first.split("  #")[0].strip() == f". {scripts.parent.name}/bin/activate"
    assert second.startswith("cd ")
    on_path = next_lines(result, "train-1", path=str(scripts))
    assert on_path[0].startswith("cd ")


def test_what_to_try_next_names_one_run_and_only_what_is_there(result: DemoResult) -> None:
    lines = "\n".join(next_lines(result, "train-20260101-120000-abcd", path=""))
    assert "timonel runs show train-20260101-120000-abcd" in lines
    assert "mlflow" not in lines
    assert "init table ../patients" in lines
    (result.folder.parent / "patients").mkdir()
    assert "init table" not in "\n".join(next_lines(result, None, path=""))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_runs_in_the_background_says_nothing_at_ctrl_c(number, shell: Shell) -> None:
    lines: list[str] = []
    code = (
        "trap 'sleep 0.2; echo interrupted; exit' INT TERM; echo up; while :; do sleep 0.05; done"
    )

    def tell() -> None:
        with story._ending_with(shell):
            shell.background(code, lines.append)
            while lines != ["up"]:
                time.sleep(0.01)
            shell._children[0].send_signal(number)
            os.kill(os.getpid(), number)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        tell()
    assert shell._children == []
    assert lines == ["up"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_folder_with_other_files_is_refused(here: Path, timonel: Timonel) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("x")
    for place in ("mine", "mine/thesis.tex"):
        outcome = timonel("demo", "--folder", place)
        assert outcome.exit_code == 2
        assert "--folder" in outcome.error_line
    assert [path.name for path in (here / "mine").iterdir()] == ["thesis.tex"]


def test_an_earlier_demo_is_gone_on_with(tmp_path: Path) -> None:
    out = Console(file=io.StringIO())
    story._enter(tmp_path / "demo", out)
    (tmp_path / "demo" / "train.py").write_text("mine")
    story._enter(tmp_path / "demo", out)
    assert "continuing in" in out.file.getvalue()
    (tmp_path / "demo" / story.MARKER).unlink()
    with pytest.raises(AlreadyExistsError):
        story._enter(tmp_path / "demo", out)


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, object]]]:
    """A server of version 1, which a test may change or break."""
    state: dict[str, object] = {"version": 1, "status": 200, "label": "none"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            one = {"version": str(state["version"]), "state": "AVAILABLE", "status": {}}
            self._answer(200, {"model_version_status": [one]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(
                state["status"], {"predictions": [{"label": state["label"], "scores": [1.0]}]}
            )

        def _answer(self, status, value) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """A few digits."""
    project.write_digits(tmp_path / "digits", 10)
    return sorted((tmp_path / "digits").glob("*/*.png"))


def test_clients_count_what_they_see(served, images, monkeypatch) -> None:
    monkeypatch.setattr(load_module, "RATE_PER_S", 500.0)
    url, state = served
    with LoadGenerator(url, "digits", images) as load:
        assert load.wait_for_version(1, 10)
        state.update(version=2, label=images[0].parent.name)
        assert load.wait_for_version(2, 10)
        assert not load.wait_for_version(3, 0.2)
    stats = load.stats
    assert stats.requests == len(stats.asked) > 0
    assert stats.failures == []
    assert 0 < stats.right < stats.requests
    assert [version for _, version in stats.versions] == [1, 2]


def test_clients_count_failures(served, images, monkeypatch) -> None:
    monkeypatch.setattr(load_module, "RATE_PER_S", 500.0)
    url, state = served
    state["status"] = 503
    with LoadGenerator(url, "digits", images) as load:
        while not load.stats.failures:
            time.sleep(0.01)
    assert load.stats.failures[0].startswith("503: ")
    with LoadGenerator("http://127.0.0.1:9", "digits", images) as load:
        while not load.stats.failures:
            time.sleep(0.01)
    assert "ConnectionRefusedError" in load.stats.failures[0]


def test_latencies_are_ranked() -> None:
    stats = LoadStats(asked=[(0.0, ms / 1000) for ms in range(1, 101)])
    assert stats.latency_ms(0.5) == pytest.approx(51)
    assert stats.latency_ms(0.99) == pytest.approx(100)
    assert LoadStats().latency_ms(0.5) == 0.0


@pytest.mark.process
@pytest.mark.timeout(700)
def test_the_whole_demo_and_what_it_leaves(here: Path) -> None:
    argv = [sys.executable, "-m", "timonel", "demo"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "\x1b[" not in out
    for command in COMMANDS:
        assert f"$ timonel {command}" in out
    accuracy = re.search(r"Held-out accuracy ([\d.]+)%", out)
    assert accuracy is not None
    assert float(accuracy[1]) > 85
    report = json.loads((here / "demo" / "demo.json").read_text())
    assert report["failed"] == 0
    assert report["requests"] > 100
    assert [entry["version"] for entry in report["versions"]] == [1, 2, 1]
    assert "files digits" in out
    assert Path(re.search(r"confusion matrix: (\S+)", out)[1]).is_file()
    assert "TensorFlow binary is optimized" not in out + done.stderr
    lineage = out[out.index("$ timonel lineage") : out.index("Held-out accuracy")]
    assert "loaded version" not in lineage.partition("\n\n")[0]
    run_what_to_try_next(out.partition("What to try next\n")[2], here)
    wait_until_alone(here)


def run_what_to_try_next(text: str, folder: Path) -> None:
    """Run the lines as they are printed, in a shell that knows nothing of this environment."""
    serve = "timonel serve digits"
    lines = [line.strip() for line in text.splitlines()]
    assert any(line.startswith(serve) for line in lines)
    # Other tests may have the ports.
    lines = [line.replace(serve, f"{serve} --rest-port 0 --grpc-port 0 --detach") for line in lines]
    lines += ["timonel servers stop digits"]
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != scripts)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "moment", [pytest.param("$ timonel convert", marks=pytest.mark.soak), "$ timonel train"]
)
def test_ctrl_c_leaves_no_process_behind(moment: str, here: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "timonel", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert any(moment in line for line in child.stdout)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("error: interrupted")
    wait_until_alone(here)


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
