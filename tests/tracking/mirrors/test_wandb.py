from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.contracts.mirrors import MirrorContract, MirroredRun, as_text
from tests.tracking.mirrors.wandb_file import records, values
from tests.waiting import until
from timonel.errors import MissingExtraError
from timonel.storage import Workspace
from timonel.tracking import Artifact, read_run, start_run
from timonel.tracking.mirrors import rebuild, sync_run
from timonel.tracking.mirrors.wandb import (
    STEP,
    WandbMirror,
    describe_destination,
    is_logged_in,
    mode,
    offline_folder,
)


@pytest.fixture(autouse=True)
def _offline_and_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIMONEL_MIRRORS", "wandb")
    monkeypatch.chdir(tmp_path)


def files(workspace: Workspace, run_id: str) -> list[Path]:
    """Return what W&B keeps of a run."""
    return list((workspace.root / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))


def stored(path: Path) -> MirroredRun:
    """Return what W&B's file holds, as `wandb sync` would upload it."""
    found = MirroredRun()
    points: dict[str, dict[int, float]] = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            _config(found, values(record.run.config.update))
        elif kind == "config":
            _config(found, values(record.config.update))
        elif kind == "history":
            row = values(record.history.item)
            for name in set(row) - {STEP, "timonel/epoch", "_step", "_runtime", "_timestamp"}:
                points.setdefault(name, {})[row[STEP]] = float(row[name])
        elif kind == "summary":
            for name, value in values(record.summary.update).items():
                if name == "timonel/status":
                    found.status = value
                elif name.startswith("timonel/output/"):
                    found.digests.add(value.rpartition(" ")[2])
    found.series = {name: sorted(held.items()) for name, held in points.items()}
    return found


def settled(workspace: Workspace, run_id: str) -> list[Path]:
    """Return a run's files once W&B's own process has written what it was given."""
    last = "exit" if read_run(workspace, run_id).is_finished else "run"
    until(lambda: any(last in kinds(path) for path in files(workspace, run_id)))
    return files(workspace, run_id)


def kinds(path: Path) -> set[str]:
    return {record.WhichOneof("record_type") for record in records(path)}


def _config(found: MirroredRun, update: dict[str, object]) -> None:
    for name, value in update.items():
        if name.startswith("timonel/input/"):
            found.digests.add(str(value).rpartition(" ")[2])
        elif name != "_wandb":
            found.params[name] = as_text(value)


@pytest.mark.process
class TestWandbMirror(MirrorContract):
    def make(self, workspace: Workspace) -> WandbMirror:
        return WandbMirror(workspace)

    def mirrored(self, workspace: Workspace, run_id: str) -> list[MirroredRun]:
        settled(workspace, run_id)
        return [stored(path) for path in files(workspace, run_id)]


@pytest.mark.process
def test_the_whole_record_is_in_wandbs_file(workspace: Workspace) -> None:
    data = Artifact("dataset", "/data/digits", "sha256:" + "d" * 64, "digits")
    with start_run(workspace, "train", name="base", inputs=[data], parent="lr") as run:
        run.metrics({"loss": 0.5}, step=7, epoch=1)
        run.metrics({"eval_loss": 0.6}, step=3)  # an evaluator comes late
        run.finish("stopped", "stopped by the user", "stopped")
    sync_run(workspace, run.run_id, [WandbMirror(workspace)])
    record = read_run(workspace)
    (path,) = settled(workspace, run.run_id)
    found = {kind: [r for r in records(path) if r.WhichOneof("record_type") == kind]
             for kind in ("run", "history", "metric", "exit")}  # fmt: skip
    header = found["run"][0].run
    assert (header.project, header.display_name, header.job_type) == ("digits", "base", "train")
    assert (header.host, header.run_group) == ("", "lr")
    first, second = (values(one.history.item) for one in found["history"])
    assert (first["loss"], first[STEP], first["timonel/epoch"]) == (0.5, 7, 1)
    assert first["_timestamp"] == pytest.approx(record.series["loss"][0].t)
    assert (second["eval_loss"], second[STEP]) == (0.6, 3)
    assert [one.metric.step_metric for one in found["metric"] if one.metric.glob_name == "*"] == [
        STEP
    ]
    assert found["exit"][0].exit.exit_code == 130


@pytest.mark.process
def test_a_run_that_breaks_off_is_whole_after_the_next_sync(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        run.metrics({"loss": 1.0}, step=1)
        code = (
            "import os, sys; from pathlib import Path\n"
            "from timonel.storage import Workspace\n"
            "from timonel.tracking.mirrors import sync_run\n"
            "from timonel.tracking.mirrors.wandb import WandbMirror\n"
            "workspace = Workspace(Path(sys.argv[1]))\n"
            "(fed,) = sync_run(workspace, sys.argv[2], [WandbMirror(workspace)])\n"
            "assert fed.events == 1, fed\n"
            "os.kill(os.getpid(), 9)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(workspace.root), run.run_id], start_new_session=True
        ) as process:
            assert process.wait() == -signal.SIGKILL
        until(lambda: not in_session(process.pid))
        run.metrics({"loss": 0.5}, step=2)
    (fed,) = sync_run(workspace, run.run_id, [WandbMirror(workspace)])
    assert fed.error is None
    (path,) = settled(workspace, run.run_id)
    assert stored(path).series == {"loss": [(1, 1.0), (2, 0.5)]}


def in_session(number: int) -> list[int]:
    """Return the processes of a session: W&B has one of its own."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == number:
                found.append(pid)
    return found


def test_only_runs_that_ask_are_mirrored(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIMONEL_MIRRORS")
    with start_run(workspace, "train") as other:
        pass
    with start_run(workspace, "train", params={"timonel.wandb": True}) as asking:
        pass
    mirror = WandbMirror(workspace)
    assert not mirror.wants_all
    assert [fed.run_id for fed in rebuild(workspace, [mirror])] == [asking.run_id]
    assert not mirror.wants(read_run(workspace, other.run_id))
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert not mirror.wants(read_run(workspace, asking.run_id))


@pytest.mark.parametrize(
    ("params", "environment", "project"),
    [
        ({"timonel.wandb_project": "mine"}, "theirs", "mine"),
        ({}, "theirs", "theirs"),
        ({}, "", "train"),
        ({"timonel.wandb_project": "a/b#c"}, "", "a_b_c"),
    ],
)
def test_the_project(
    params: dict[str, str], environment: str, project: str, workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WANDB_PROJECT", environment)
    script = Artifact("source", "/code/train.py", None, "train.py")
    with start_run(workspace, "train", params=params, inputs=[script]) as run:
        pass
    assert WandbMirror(workspace)._project(read_run(workspace, run.run_id)) == project


def test_without_wandb_the_extra_is_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'timonel\[wandb\]'"):
        WandbMirror(workspace).begin(read_run(workspace, start_run(workspace, "train").run_id))


def test_who_is_logged_in(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert mode(home) == "offline"
    assert mode({**home, "WANDB_API_KEY": "k" * 40}) == "online"
    assert mode({**home, "WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}) == "offline"
    assert mode({**home, "WANDB_MODE": "disabled"}) == "disabled"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert is_logged_in(home)
    assert not is_logged_in({**home, "WANDB_BASE_URL": "https://wandb.example.org"})
    elsewhere = tmp_path / "logins"
    elsewhere.write_text("machine wandb.example.org login user password secret\n")
    asked = {"NETRC": str(elsewhere), "WANDB_BASE_URL": "https://wandb.example.org"}
    assert is_logged_in(asked)
    elsewhere.write_text("no such format")
    assert not is_logged_in(asked)


def test_where_a_run_goes_is_said() -> None:
    folder = str(offline_folder({}, Path(".timonel")))
    said = {
        text: describe_destination({"WANDB_MODE": text, "HOME": "/nowhere"}, folder, "train-1")
        for text in ("", "offline", "online", "disabled")
    }
    kept = "wandb sync .timonel/wandb/offline-run-*-train-1"
    assert said == {
        "": f"Weights & Biases: offline (no login found); upload with: {kept}",
        "offline": f"Weights & Biases: offline (set by WANDB_MODE); upload with: {kept}",
        "online": "Weights & Biases: https://api.wandb.ai",
        "disabled": "Weights & Biases: disabled by WANDB_MODE",
    }
    assert offline_folder({"WANDB_DIR": "/w"}, Path("x")) == Path("/w/wandb")


@pytest.mark.process
def test_without_a_login_nobody_is_called_and_nothing_is_printed(
    workspace: Workspace, tmp_path: Path
) -> None:
    with start_run(workspace, "train") as run:
        run.metrics({"loss": 1.0}, step=1)
    code = (
        "import sys; from pathlib import Path\n"
        "from timonel.storage import Workspace\n"
        "from timonel.tracking.mirrors import sync_run\n"
        "from timonel.tracking.mirrors.wandb import WandbMirror\n"
        "workspace = Workspace(Path(sys.argv[1]))\n"
        "(fed,) = sync_run(workspace, sys.argv[2], [WandbMirror(workspace)])\n"
        "assert fed.is_complete, fed\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("CI", "PYTEST"))
        }
        # Whatever would leave the machine has to come through here, from W&B's own process too.
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy)
        done = subprocess.run(
            [sys.executable, "-c", code, str(workspace.root), run.run_id],
            capture_output=True, text=True, check=False,
            env={**environment, **proxies, "WANDB_BASE_URL": proxy},
        )  # fmt: skip
        listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(files(workspace, run.run_id)) == 1
