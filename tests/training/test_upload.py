"""Upload a job's run and model while its server fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.faulty import FaultyServer
from timonel.errors import AlreadyExistsError, JobError, NotFoundError
from timonel.models.publish import open_export
from timonel.storage import Workspace, find_workspace
from timonel.storage.object_store import ObjectStore
from timonel.tracking import Artifact, RunWriter, open_run, read_run, start_run
from timonel.training.jobs import restore_job
from timonel.training.upload import alive_name, follow, upload_job

pytestmark = pytest.mark.process

Server = tuple[str, FaultyServer]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats" / "1"


@pytest.fixture
def elsewhere(
    faulty: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Workspace]:
    def find() -> Workspace:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
            return find_workspace(faulty[0])

    return find


@pytest.fixture
def run(faulty: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWriter:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    monkeypatch.setattr(ObjectStore.__init__, "__kwdefaults__", {"patience_s": 0.2})
    start_run(find_workspace(faulty[0]), "train", run_id="job", job_id="job")
    # As a task's: it appends, and the sidecar uploads.
    return open_run(find_workspace(faulty[0], offline=True), "job")


def upload(uri: str, *, stop: bool = False, wait: Callable[[float], object]) -> bool:
    def taken_over() -> None:
        raise AssertionError("nobody took the job over")

    return follow(uri, "job", stop=lambda: stop, wait=wait, taken_over=taken_over)


def steps(*actions: Callable[[], object]) -> Callable[[float], object]:
    """Return a wait that does the next action each time."""
    left = iter(actions)
    return lambda _: next(left)()


def test_a_job_is_followed_to_its_end(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
) -> None:
    seen = []

    def look() -> None:
        seen.append(read_run(elsewhere(), "job").metrics)
        run.metrics({"loss": len(seen)})

    def end() -> None:
        look()
        run.finish("succeeded")

    assert upload(faulty[0], wait=steps(look, look, end))
    assert seen == [{}, {"loss": 1}, {"loss": 2}]
    assert read_run(elsewhere(), "job").status == "succeeded"


def test_a_server_that_is_away_delays_only_the_upload(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leave(fault: str) -> None:
        faulty[1].fault = lambda *_: fault
        run.metrics({"loss": 0.5})

    def come_back() -> None:
        run.finish("failed", "no luck")
        faulty[1].fault = lambda *_: None

    wait = steps(lambda: leave("away"), lambda: leave("expired"), lambda: None, come_back)
    assert upload(faulty[0], wait=wait)
    assert "the server does not answer" in caplog.text
    assert "the credentials have expired" in caplog.text
    found = read_run(elsewhere(), "job")
    assert (found.message, len(found.series["loss"])) == ("no luck", 2)


def test_a_stopped_upload_uploads_once_more(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
) -> None:
    run.metrics({"loss": 1.0})
    assert not upload(faulty[0], stop=True, wait=steps())
    assert read_run(elsewhere(), "job").metrics == {"loss": 1.0}


def test_the_model_is_there_before_the_end_of_its_run(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
) -> None:
    import shutil

    workspace = find_workspace(faulty[0])
    folder = workspace.jobs / "job" / "export"
    shutil.copytree(FIXTURES / "export", folder)
    artifact = Artifact("savedmodel", folder / "saved_model", "sha256:1")
    run.output(artifact)
    run.finish("succeeded")
    faulty[1].seen.clear()
    upload_job(workspace, "job")
    writes = [path.partition("?")[0] for method, path, _ in faulty[1].seen if method == "PUT"]
    assert writes[-2].endswith("/export/export.json")
    assert "/runs/job/events/" in writes[-1]
    there = elsewhere()
    record = read_run(there, "job")
    (shared,) = record.outputs
    found = open_export(there, record, shared)
    assert found == there.jobs / "job" / "export"
    assert sorted(p.name for p in found.rglob("*")) == sorted(p.name for p in folder.rglob("*"))
    # A resumed job replaces its model.
    document = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**document, "more": 1}))
    upload_job(workspace, "job")
    open_export(there, record, shared)
    assert json.loads((found / "export.json").read_text())["more"] == 1
    (found / "export.json").write_text(json.dumps({**document, "more": 2}))
    with pytest.raises(AlreadyExistsError, match="jobs/job/export already exists"):
        workspace.local_copy.push_folder(found, folder)


@pytest.mark.parametrize("is_finished", [False, True])
def test_the_export_of_a_job_that_runs_is_not_replaced(
    faulty: Server, run: RunWriter, is_finished: bool
) -> None:
    import shutil

    workspace = find_workspace(faulty[0])
    folder = workspace.jobs / "job" / "export"
    shutil.copytree(FIXTURES / "export", folder)
    artifact = Artifact("savedmodel", folder / "saved_model", "sha256:uploaded")
    run.output(artifact)
    upload_job(workspace, "job")
    document = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**document, "digest": "sha256:newer"}))
    if is_finished:
        run.finish("stopped")
    record = read_run(workspace, "job")
    open_export(workspace, record, record.outputs[-1])
    digest = json.loads((folder / "export.json").read_text())["digest"]
    assert (digest == "sha256:newer") is not is_finished


def test_the_model_of_a_machine_that_continued_the_job_is_kept(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
) -> None:
    import shutil

    here = find_workspace(faulty[0])
    upload_job(here, "job")
    there = elsewhere()
    for workspace in (here, there):
        folder = workspace.jobs / "job" / "export"
        shutil.copytree(FIXTURES / "export", folder)
        document = json.loads((folder / "export.json").read_text())
        (folder / "export.json").write_text(json.dumps({**document, "by": str(workspace.root)}))
    read_run(there, "job")
    open_run(there, "job").metrics({"loss": 0.5})
    upload_job(there, "job")
    run.metrics({"loss": 222.0})
    before = there.local_copy.store.find("jobs/job/export")
    with pytest.raises(AlreadyExistsError, match="another machine continued the run job"):
        upload_job(here, "job")
    assert there.local_copy.store.find("jobs/job/export") == before


def test_only_a_silent_unsuccessful_job_is_resumed_elsewhere(
    faulty: Server,
    run: RunWriter,
    elsewhere: Callable[[], Workspace],
) -> None:
    there = elsewhere()
    upload(faulty[0], stop=True, wait=steps())
    watched = []

    def wait(seconds: float) -> None:
        watched.append(seconds)
        if len(watched) == 3:
            upload(faulty[0], stop=True, wait=steps())

    # Not an event in all the time: its process renews its sign of life.
    with pytest.raises(JobError, match="job still runs on another machine"):
        restore_job(there, "job", wait)
    assert len(watched) == 3
    run.finish("succeeded")
    upload_job(find_workspace(faulty[0]), "job")
    with pytest.raises(JobError, match="can be resumed, but job has succeeded"):
        restore_job(there, "job", wait)


def test_a_silent_job_is_watched_for_a_minute(
    faulty: Server, run: RunWriter, elsewhere: Callable[[], Workspace]
) -> None:
    upload(faulty[0], stop=True, wait=steps())
    watched: list[float] = []
    # It has no specification, as no engine has started it.
    with pytest.raises(NotFoundError, match=r"job\.json"):
        restore_job(elsewhere(), "job", watched.append)
    assert sum(watched) == 60


def test_a_job_that_another_machine_continues_is_stopped_here(
    faulty: Server, run: RunWriter, elsewhere: Callable[[], Workspace]
) -> None:
    stopped = []

    def take_over() -> None:
        local_copy = elsewhere().local_copy
        assert local_copy is not None
        local_copy.store.write(alive_name("job"), b"other")

    ended = follow(
        faulty[0],
        "job",
        stop=lambda: False,
        wait=steps(lambda: None, take_over),
        taken_over=lambda: stopped.append(True),
    )
    assert not ended
    assert stopped == [True]


def test_a_sign_of_life_whose_answer_is_lost_is_ones_own(faulty: Server, run: RunWriter) -> None:
    def lose() -> None:
        faulty[1].fault = lambda method, path, *_: (
            "lost" if method == "PUT" and path.endswith("/alive") else None
        )

    def come_back() -> None:
        faulty[1].fault = lambda *_: None

    assert upload(faulty[0], wait=steps(lose, come_back, lambda: run.finish("succeeded")))
