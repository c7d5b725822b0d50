from __future__ import annotations

import json
import math
import multiprocessing
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from timonel.engines.spec import JobSpec, RoleSpec
from timonel.errors import AlreadyExistsError, InputError, Interrupted, NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import Artifact, new_run_id, open_run, read_run, start_run


def test_a_run_id_is_readable_sortable_and_a_valid_job_id() -> None:
    run_id = new_run_id("train", now=1_795_198_530)
    assert re.fullmatch(r"train-20261120-181530-[0-9a-f]{4}", run_id)
    JobSpec(job_id=run_id, module="m", roles=(RoleSpec(name="chief"),))


def test_the_header_holds_what_was_known_at_the_start(workspace: Workspace) -> None:
    files = Artifact("files", "/raw/digits", "sha256:aa", "digits")
    run = start_run(
        workspace,
        "convert",
        name="first",
        params={"seed": 3, "api_key": "abcdefgh12"},
        inputs=[files],
        command=["timonel", "convert", "--token", "abc", "raw"],
    )
    document = json.loads((run.folder / "run.json").read_text())
    assert list(document)[:3] == ["kind", "format", "id"]
    assert document["kind"] == "run"
    assert document["format"] == 1
    assert document["run_kind"] == "convert"
    assert document["params"] == {"seed": 3, "api_key": "***"}
    assert document["command"] == ["timonel", "convert", "--token", "***", "raw"]
    assert document["environment"]["packages"]["numpy"] == np.__version__
    record = read_run(workspace, run.run_id)
    assert record.inputs == (files,)
    assert (record.kind, record.name, record.status) == ("convert", "first", "running")


def test_a_record_is_never_overwritten(workspace: Workspace) -> None:
    run = start_run(workspace, "convert", run_id="convert-1", params={"a": 1})
    before = (run.folder / "run.json").read_bytes()
    with pytest.raises(AlreadyExistsError, match="convert-1 already exists"):
        start_run(workspace, "convert", run_id="convert-1", params={"a": 2})
    assert (run.folder / "run.json").read_bytes() == before
    assert sorted(path.name for path in run.folder.iterdir()) == ["run.json"]


def test_a_folder_that_is_there_before_the_record_is_no_obstacle(workspace: Workspace) -> None:
    (workspace.runs / "train-1").mkdir()
    (workspace.runs / "train-1" / "train.json").write_text("{}")
    assert start_run(workspace, "train", run_id="train-1").run_id == "train-1"


@pytest.mark.parametrize("bad", ["../x", "a/b", "UPPER", "-x", ".", "a b"])
def test_an_id_that_cannot_name_a_folder_is_refused(workspace: Workspace, bad: str) -> None:
    with pytest.raises(SpecError, match="run id"):
        start_run(workspace, "train", run_id=bad)


def test_two_runs_of_one_second_get_ids_of_their_own(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("timonel.tracking.writer.secrets.token_hex", lambda _: next(drawn))
    monkeypatch.setattr("timonel.tracking.writer.time.gmtime", lambda _: (2026, 1, 1, *[0] * 6))
    first, second = start_run(workspace, "tune"), start_run(workspace, "tune")
    assert first.run_id.endswith("-aaaa")
    assert second.run_id.endswith("-bbbb")


def test_events_fold_into_the_record(workspace: Workspace) -> None:
    dataset = Artifact("dataset", "/data/digits", "sha256:bb")
    with start_run(workspace, "train", params={"lr": 0.1}) as run:
        run.params({"lr": 0.2, "layers": [1, 2]})
        run.metrics({"loss": np.float32(0.5), "accuracy": 0.25}, step=10, epoch=0)
        run.metrics({"loss": 0.25}, step=20, epoch=1)
        run.input(dataset)
        run.output(Artifact("savedmodel", "/job/export", "sha256:cc"))
        run.event("progress", epoch=1, step=20)
    record = read_run(workspace, run.run_id)
    assert record.params == {"lr": 0.2, "layers": [1, 2]}
    assert record.metrics == {"loss": 0.25, "accuracy": 0.25}
    assert [(p.step, p.epoch, p.value) for p in record.series["loss"]] == [
        (10, 0, 0.5),
        (20, 1, 0.25),
    ]
    assert record.inputs == (dataset,)
    assert [artifact.type for artifact in record.outputs] == ["savedmodel"]
    assert record.status == "succeeded"
    assert record.ended_at is not None
    assert record.duration_s == pytest.approx(record.ended_at - record.started_at)


def test_numbers_that_json_lacks_come_back(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.metrics({"a": math.nan, "b": math.inf, "c": -math.inf})
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[0], parse_constant=pytest.fail)["metrics"]["b"] == "inf"
    metrics = read_run(workspace).metrics
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (ValueError("no"), "failed", "ValueError"),
        (KeyboardInterrupt(), "stopped", "stopped"),
        (Interrupted("stop"), "stopped", "stopped"),
    ],
)
def test_a_block_that_raises_ends_the_run(
    workspace: Workspace, error: BaseException, status: str, cause: str
) -> None:
    with pytest.raises(type(error)), start_run(workspace, "convert"):
        raise error
    record = read_run(workspace)
    assert (record.status, record.cause) == (status, cause)


def test_the_first_end_counts(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        run.finish("stopped", "by the user")
    open_run(workspace, run.run_id).finish("succeeded")
    assert read_run(workspace).status == "stopped"
    assert read_run(workspace).message == "by the user"


def _append_metrics(workspace: Workspace, run_id: str, worker: int) -> None:
    run = open_run(workspace, run_id)
    for step in range(200):
        run.metrics({f"m{worker}": step}, step=step)


def test_a_clock_that_is_set_does_not_show(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run(workspace, "train")
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 86400)
        run.finish("succeeded")
    assert read_run(workspace, run.run_id).duration_s < 3600


def test_processes_append_to_one_run_without_losing_a_line(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_append_metrics, args=(workspace, run.run_id, n)) for n in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    record = read_run(workspace)
    assert record.skipped_lines == 0
    assert {name: len(points) for name, points in record.series.items()} == {
        "m0": 200,
        "m1": 200,
        "m2": 200,
    }


def test_an_unknown_run_cannot_be_opened(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError, match="no run train-x"):
        open_run(workspace, "train-x")


def test_a_workspace_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    # Tests may run as root, whom no mode stops: a file in the way does.
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        start_run(Workspace(tmp_path / "file"), "convert")


def test_no_secret_reaches_the_disk(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3tvalue99"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("TF_XLA_FLAGS", f"--dump=https://me:{secret}@host/x")
    repository = tmp_path / "code"
    repository.mkdir()
    for arguments in (
        ["init", "-q"],
        ["remote", "add", "origin", f"https://me:{secret}@example.com/r.git"],
        ["-c", "user.name=t", "-c", "user.email=t@e.org", "commit", "-qm", "c", "--allow-empty"],
    ):
        subprocess.run(["git", "-C", str(repository), *arguments], check=True)
    run = start_run(
        workspace,
        "train",
        params={"db": {"password": secret}, "url": f"postgres://u:{secret}@db/x"},
        inputs=[Artifact("files", f"s3://id:{secret}@bucket/raw")],
        command=["train.py", f"--api-key={secret}", "--password", secret],
        code_dir=repository,
    )
    run.params({"HF_TOKEN": secret})
    run.output(
        Artifact("report", f"https://h/x?sig={secret}&a=1", metadata={"u": f"x://{secret}@h"})
    )
    run.event("log", text=f"GET https://u:{secret}@host/")
    run.finish("failed", f"cannot reach https://u:{secret}@host/")
    written = "".join(path.read_text() for path in run.folder.iterdir())
    assert secret not in written
    assert read_run(workspace).header.git == {
        "commit": subprocess.check_output(
            ["git", "-C", str(repository), "rev-parse", "HEAD"], text=True
        ).strip(),
        "dirty": False,
        "branch": read_run(workspace).header.git["branch"],
        "remote": "https://***@example.com/r.git",
    }
