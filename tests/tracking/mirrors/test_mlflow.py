from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.mirrors import MirrorContract, MirroredRun
from timonel.errors import MissingExtraError
from timonel.storage import Workspace, write_document
from timonel.tracking import Artifact, read_run, start_run
from timonel.tracking.mirrors import rebuild, sync_run
from timonel.tracking.mirrors.mlflow import RUN_ID_TAG, MlflowMirror, _quietly

STATUS = {"RUNNING": "running", "FINISHED": "succeeded", "FAILED": "failed", "KILLED": "stopped"}


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables and no runs; making one takes seconds."""
    workspace = Workspace(tmp_path_factory.mktemp("tables"))
    MlflowMirror(workspace)._connect()
    return workspace.root / "mlflow.db"


@pytest.fixture(autouse=True)
def database(workspace: Workspace, empty_database: Path) -> Path:
    target = workspace.root / "mlflow.db"
    target.write_bytes(empty_database.read_bytes())
    return target


@pytest.fixture(autouse=True)
def _folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def client(workspace: Workspace) -> Any:
    """MLflow's own client on the file, as ``mlflow ui`` would open it."""
    with _quietly():
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=f"sqlite:///{workspace.root}/mlflow.db")


def found(workspace: Workspace, run_id: str) -> list[Any]:
    mlflow = client(workspace)
    experiments = [experiment.experiment_id for experiment in mlflow.search_experiments()]
    runs: list[Any] = mlflow.search_runs(experiments, f"tags.`{RUN_ID_TAG}` = '{run_id}'")
    return runs


@pytest.mark.slow
class TestMlflowMirror(MirrorContract):
    def make(self, workspace: Workspace) -> MlflowMirror:
        return MlflowMirror(workspace)

    def mirrored(self, workspace: Workspace, run_id: str) -> list[MirroredRun]:
        mlflow = client(workspace)
        return [
            MirroredRun(
                STATUS[run.info.status],
                dict(run.data.params),
                {
                    name: [
                        (metric.step, metric.value)
                        for metric in mlflow.get_metric_history(run.info.run_id, name)
                    ]
                    for name in run.data.metrics
                },
                {
                    text.rpartition(" ")[2]
                    for name, text in run.data.tags.items()
                    if name.startswith(("timonel.input.", "timonel.output."))
                },
            )
            for run in found(workspace, run_id)
        ]


def test_the_whole_record_is_in_mlflow(workspace: Workspace) -> None:
    digest = "sha256:" + "d" * 64
    data = Artifact("dataset", "/data/digits", digest, "digits", {"records": 300})
    with start_run(
        workspace, "train", name="base", params={"lr": 0.1}, inputs=[data], job_id="job-1",
        command=["timonel", "train", "train.py"],
    ) as run:  # fmt: skip
        run.metrics({"loss": 0.5}, step=7, epoch=1)
        run.finish("stopped", "stopped by the user", "stopped")
    sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    (stored,) = found(workspace, run.run_id)
    record = read_run(workspace)
    assert client(workspace).get_experiment(stored.info.experiment_id).name == "digits"
    assert stored.info.run_name == "base"
    assert stored.info.status == "KILLED"
    assert stored.info.start_time == round(record.started_at * 1000)
    assert record.ended_at is not None
    assert stored.info.end_time == round(record.ended_at * 1000)
    (point,) = client(workspace).get_metric_history(stored.info.run_id, "loss")
    assert (point.value, point.step) == (0.5, 7)
    assert point.timestamp == round(record.series["loss"][0].t * 1000)
    tags = stored.data.tags
    assert tags["timonel.kind"] == "train"
    assert tags["timonel.job_id"] == "job-1"
    assert tags["timonel.command"] == "timonel train train.py"
    assert tags["timonel.status"] == "stopped"
    assert tags["timonel.message"] == "stopped by the user"
    assert tags["timonel.input.dataset.digits"] == f"/data/digits {digest}"
    (used,) = stored.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", "d" * 36)
    assert digest in used.dataset.profile


def test_a_parameter_that_changes_is_kept_beside_the_first(workspace: Workspace) -> None:
    with start_run(workspace, "train", params={"lr": 0.1}) as run:
        mirror = MlflowMirror(workspace)
        sync_run(workspace, run.run_id, [mirror])
        run.params({"lr": 0.2, "new": "x"})
    (fed,) = sync_run(workspace, run.run_id, [mirror])
    assert fed.error is None
    (stored,) = found(workspace, run.run_id)
    assert stored.data.params == {"lr": "0.1", "new": "x"}
    assert stored.data.tags["timonel.param.lr"] == "0.2"


def test_a_long_parameter_says_that_it_was_cut(workspace: Workspace) -> None:
    with start_run(workspace, "train", params={"text": "x" * 7000}) as run:
        pass
    sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    (stored,) = found(workspace, run.run_id)
    assert len(stored.data.params["text"]) == 6000
    assert stored.data.params["text"].endswith(
        "[truncated by timonel: the run record has the full value]"
    )


def test_a_deleted_experiment_comes_back_with_the_next_run(workspace: Workspace) -> None:
    for _ in range(2):
        with start_run(workspace, "train") as run:
            pass
        (fed,) = sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
        assert fed.error is None
        (stored,) = found(workspace, run.run_id)
        client(workspace).delete_experiment(stored.info.experiment_id)


def test_artifacts_stay_in_the_workspace(workspace: Workspace, tmp_path: Path) -> None:
    with start_run(workspace, "train") as run:
        pass
    sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    (stored,) = found(workspace, run.run_id)
    assert stored.info.artifact_uri.startswith((workspace.root / "mlartifacts").as_uri())
    assert [path.name for path in tmp_path.iterdir()] == ["workspace"]


def test_the_place_can_be_chosen(
    workspace: Workspace, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    database.rename(elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    with start_run(workspace, "train") as run:
        pass
    (fed,) = sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    assert fed.error is None
    assert not database.exists()


def test_trials_are_child_runs_of_one_run_per_study(workspace: Workspace) -> None:
    write_document(workspace.studies / "lr" / "study.json", "study", {"created_at": 5.0})
    trials = [start_run(workspace, "train", parent="lr") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:  # as the trials' mirrors, which run at the same time
        feeds = list(
            pool.map(lambda run: sync_run(workspace, run.run_id, [MlflowMirror(workspace)]), trials)
        )
    assert [fed.error for (fed,) in feeds] == [None] * 4
    (parent,) = named(workspace, "lr")
    assert (parent.info.status, parent.info.start_time) == ("RUNNING", 5000)
    stored = [found(workspace, run.run_id)[0] for run in trials]
    assert {run.data.tags["mlflow.parentRunId"] for run in stored} == {parent.info.run_id}
    for run in trials:
        assert named(workspace, "lr")[0].info.status == "RUNNING"
        run.finish("succeeded")
        sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    (parent,) = named(workspace, "lr")
    assert parent.info.status == "FINISHED"
    assert parent.info.end_time == max(
        found(workspace, run.run_id)[0].info.end_time for run in trials
    )
    with start_run(workspace, "train", parent="lr") as run:  # the study goes on
        sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
        assert named(workspace, "lr")[0].info.status == "RUNNING"
    rebuild(workspace, [MlflowMirror(workspace)])
    assert [run.info.status for run in named(workspace, "lr")] == ["FINISHED"]


def test_studies_of_one_name_in_two_workspaces_stay_apart(
    workspace: Workspace, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    for place, created_at in ((workspace, 5.0), (Workspace(workspace.root / "other"), 6.0)):
        write_document(place.studies / "lr" / "study.json", "study", {"created_at": created_at})
        with start_run(place, "train", parent="lr") as run:
            pass
        sync_run(place, run.run_id, [MlflowMirror(place)])
    assert len(named(workspace, "lr")) == 2


def named(workspace: Workspace, name: str) -> list[Any]:
    mlflow = client(workspace)
    experiments = [experiment.experiment_id for experiment in mlflow.search_experiments()]
    runs: list[Any] = mlflow.search_runs(experiments, f"attributes.run_name = '{name}'")
    return runs


def test_a_spoilt_database_fails_no_run(workspace: Workspace, database: Path) -> None:
    database.write_bytes(b"no database" * 100)
    with start_run(workspace, "train") as run:
        pass
    (fed,) = sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    assert fed.error is not None
    assert not fed.is_complete
    assert "DatabaseError" in (run.folder / "mirrors" / "mlflow.log").read_text()
    assert read_run(workspace).status == "succeeded"


def test_without_mlflow_the_extra_is_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'timonel\[mlflow\]'"):
        MlflowMirror(workspace).begin(read_run(workspace, start_run(workspace, "train").run_id))


@pytest.mark.process
def test_the_first_use_is_silent_and_reports_nothing_home(
    workspace: Workspace, database: Path
) -> None:
    database.unlink()
    with start_run(workspace, "train") as run:
        pass
    code = (
        "import sys\n"
        "from timonel.storage import Workspace\n"
        "from timonel.tracking.mirrors import sync_run\n"
        "from pathlib import Path\n"
        "(fed,) = sync_run(Workspace(Path(sys.argv[1])), sys.argv[2])\n"
        "assert fed.is_complete, fed\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "assert is_telemetry_disabled()\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    # MLflow keeps silent by itself where it takes itself to be in a test.
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("CI", "PYTEST"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(workspace.root), run.run_id],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.process
def test_the_page_shows_the_runs_with_the_documented_command(
    tmp_path: Path, empty_database: Path
) -> None:
    workspace = Workspace(tmp_path / ".timonel")
    with start_run(workspace, "train", name="base") as run:
        pass
    (workspace.root / "mlflow.db").write_bytes(empty_database.read_bytes())
    sync_run(workspace, run.run_id, [MlflowMirror(workspace)])
    page = Path(__file__).parents[3] / "docs/tutorials/run.md"
    (command,) = re.findall(r"^mlflow (ui .*)$", page.read_text(), re.MULTILINE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command.split(), "--port", str(port), "--workers", "1"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        asked = f"http://127.0.0.1:{port}/api/2.0/mlflow"
        listed = answer(f"{asked}/experiments/search?max_results=9")["experiments"]
        ids = [each["experiment_id"] for each in listed]
        (shown,) = answer(f"{asked}/runs/search", {"experiment_ids": ids})["runs"]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    assert shown["info"]["run_name"] == "base"


def answer(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON of an address, which may need some time to answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    for _ in range(1200):
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError(url)
