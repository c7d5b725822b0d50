"""One contract of workspaces, in a local folder and in a bucket, and faults of the bucket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.storage.faulty import FaultyServer
from timonel.errors import AlreadyExistsError, CorruptError, FormatError, InputError, NotFoundError
from timonel.models.repository import workspace_models
from timonel.storage import Workspace, find_workspace
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.object_store import ObjectStore
from timonel.storage.workspace import CLAIM_VARIABLE
from timonel.tracking import Artifact, lineage, list_runs, open_run, read_run, start_run

Machine = Callable[[str], Workspace]


@pytest.fixture(params=["folder", "claim", "bucket"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """Open one workspace as on several machines, each with a cache folder of its own."""
    if request.param == "folder":
        yield lambda _: find_workspace(tmp_path / "workspace")
    elif request.param == "claim":
        monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
        yield machine_of(f"{tmp_path}/team/ws", tmp_path, monkeypatch)
    else:
        uri, _ = request.getfixturevalue("faulty")
        yield machine_of(uri, tmp_path, monkeypatch)


@pytest.fixture
def bucket_machine(
    faulty: tuple[str, FaultyServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return machine_of(faulty[0], tmp_path, monkeypatch)


@pytest.fixture
def server(faulty: tuple[str, FaultyServer]) -> FaultyServer:
    return faulty[1]


def machine_of(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    def machine(name: str) -> Workspace:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return find_workspace(uri)

    return machine


def saved_model(folder: Path, content: bytes = b"graph") -> Path:
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(content)
    (folder / "variables" / "variables.index").write_bytes(content * 10)
    return folder


def test_runs_are_seen_elsewhere(machine: Machine, tmp_path: Path) -> None:
    here = machine("a")
    with start_run(here, "train", params={"lr": 0.1}, inputs=[Artifact("files", tmp_path)]) as run:
        run.metrics({"loss": 0.5}, step=1)
        made = here.jobs / run.run_id / "export" / "saved_model"
        run.output(Artifact("savedmodel", made, "sha256:12"))
        (run.folder / "note.txt").write_text("text")
    there = machine("b")
    (found,) = list_runs(there)
    assert (found.id, found.status, found.params, found.metrics) == (
        run.run_id,
        "succeeded",
        {"lr": 0.1},
        {"loss": 0.5},
    )
    assert (found.folder / "note.txt").read_text() == "text"
    assert found.inputs[0].uri == str(tmp_path), "what is outside the workspace stays as it is"
    assert found.outputs[0].uri == f"{here.uri}/jobs/{run.run_id}/export/saved_model"
    assert there.path_of(found.outputs[0].uri) == there.jobs / run.run_id / "export/saved_model"
    assert read_run(there, run.run_id[:-2]).id == run.run_id
    assert lineage(there, run.run_id).focus is not None


def test_a_location_cannot_lead_out_of_the_workspace(bucket_machine: Machine) -> None:
    here = bucket_machine("a")
    for below in ("../../outside/model", "models/../../x", "models//x", "./x"):
        with pytest.raises(InputError, match="leads out of the workspace"):
            here.path_of(f"{here.uri}/{below}")


@pytest.mark.slow
def test_other_weights_of_the_same_size_are_uploaded(bucket_machine: Machine) -> None:
    here = bucket_machine("a")
    assert here.local_copy is not None
    folder = saved_model(here.jobs / "job" / "export")
    weights = folder / "variables" / "variables.data"
    # S3 has no checksum of the content of files that are uploaded in parts.
    for content in (b"1", b"2"):
        weights.write_bytes(content * (101 << 20))
        here.local_copy.push_folder(folder, folder, replace=True)
    there = bucket_machine("b")
    assert there.local_copy is not None
    copy = there.jobs / "job" / "export"
    there.local_copy.pull_folder(copy)
    assert (copy / "variables" / "variables.data").read_bytes()[:8] == b"22222222"


def test_a_damaged_run_does_not_hide_the_others(bucket_machine: Machine) -> None:
    here = bucket_machine("a")
    assert here.local_copy is not None
    for name in ("good", "bad"):
        with start_run(here, "train", run_id=name) as run:
            run.metrics({"loss": 1.0}, step=1)
            here.local_copy.runs.push(name)
            run.metrics({"loss": 0.5}, step=2)
    first = min(name for name in here.local_copy.store.find("runs/bad/events"))
    here.local_copy.store.delete([first])
    there = bucket_machine("b")
    assert [run.id for run in list_runs(there)] == ["good"]
    with pytest.raises(CorruptError, match="the events of bad"):
        read_run(there, "bad")


def test_a_run_is_followed_elsewhere(machine: Machine) -> None:
    here = machine("a")
    run = start_run(here, "train", job_id="job")
    for number in range(5):
        run.metrics({"loss": number}, step=number)
        if here.local_copy is not None:
            here.local_copy.runs.push(run.run_id)
        seen = read_run(machine("b"), run.run_id)
        assert (seen.status, seen.metrics) == ("running", {"loss": number})
    run.finish("stopped")
    assert read_run(machine("b")).status == "stopped"


def test_an_id_is_used_once(machine: Machine) -> None:
    start_run(machine("a"), "train", run_id="mine", params={"from": "a"}, job_id="job")
    with pytest.raises(AlreadyExistsError, match="the run mine already exists"):
        start_run(machine("b"), "train", run_id="mine", params={"from": "b"}, job_id="job")
    assert read_run(machine("c"), "mine").params == {"from": "a"}


@pytest.mark.slow
def test_runs_of_several_machines_come_together(machine: Machine) -> None:
    spaces = [machine(f"m{number}") for number in range(4)]

    def work(workspace: Workspace) -> list[str]:
        ids = []
        for number in range(3):
            with start_run(workspace, "convert") as run:
                run.metrics({"n": number})
            ids.append(run.run_id)
        return ids

    with ThreadPoolExecutor(4) as pool:
        ids = [each for done in pool.map(work, spaces) for each in done]
    assert {run.id: run.status for run in list_runs(machine("z"))} == dict.fromkeys(
        ids, "succeeded"
    )


def test_another_machine_continues_a_run(machine: Machine) -> None:
    with start_run(machine("a"), "train", job_id="job") as run:
        run.metrics({"loss": 3.0}, step=1)
    there = machine("b")
    read_run(there, run.run_id)
    again = open_run(there, run.run_id)
    again.event("resume")
    again.metrics({"loss": 2.0}, step=2)
    again.finish("succeeded")
    found = read_run(machine("a"), run.run_id)
    assert [point.value for point in found.series["loss"]] == [3.0, 2.0]


def test_versions_get_numbers_of_their_own(machine: Machine, tmp_path: Path) -> None:
    spaces = [machine(f"m{number}") for number in range(3)]
    models = [saved_model(tmp_path / str(number), bytes([number])) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        versions = list(
            pool.map(
                lambda pair: workspace_models(pair[0]).add("m", pair[1]),
                zip(spaces, models, strict=True),
            )
        )
    assert sorted(version.number for version in versions) == [1, 2, 3]
    there = workspace_models(machine("z"))
    assert there.names() == ["m"]
    assert {v.number: (v.path / "saved_model.pb").read_bytes() for v in there.versions("m")} == {
        version.number: bytes([number]) for number, version in enumerate(versions)
    }


@pytest.mark.slow
def test_a_deleted_version_is_gone_everywhere_and_its_number_with_it(
    machine: Machine, tmp_path: Path
) -> None:
    here = workspace_models(machine("a"))
    for _ in range(2):
        here.add("m", saved_model(tmp_path / "model"))
    there = workspace_models(machine("b"))
    assert [version.number for version in there.versions("m")] == [1, 2]
    here.delete("m", 2)
    assert [version.number for version in there.versions("m")] == [1]
    assert there.add("m", tmp_path / "model").number == 3


def test_a_run_that_two_machines_continue_is_refused_to_the_second(
    bucket_machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with start_run(bucket_machine("a"), "train", job_id="job") as run:
        pass
    b, c = bucket_machine("b"), bucket_machine("c")
    for there in (b, c):
        read_run(there, run.run_id)
    open_run(b, run.run_id).metrics({"loss": 1.0})
    second = open_run(c, run.run_id)
    second.metrics({"loss": 222.0})
    b.local_copy.runs.push(run.run_id)
    with pytest.raises(AlreadyExistsError, match=f"another machine continued the run {run.run_id}"):
        second.finish("failed")
    assert read_run(bucket_machine("z")).metrics == {"loss": 1.0}
    # Its events are kept beside the run, for everyone.
    assert read_run(bucket_machine("c")).metrics == {"loss": 1.0}
    assert f"another machine continued the run {run.run_id}" in caplog.text
    (kept,) = read_run(bucket_machine("z")).folder.glob("diverged-*.jsonl")
    assert b"222.0" in kept.read_bytes()


def test_events_that_were_not_uploaded_before_another_machine_went_on_are_kept(
    bucket_machine: Machine,
) -> None:
    workspace = bucket_machine("a")
    run = start_run(workspace, "train", job_id="job")
    workspace.local_copy.runs.push(run.run_id)
    run.metrics({"loss": 111.0})  # then the machine was lost
    there = bucket_machine("b")
    read_run(there, run.run_id)
    again = open_run(there, run.run_id)
    for step in range(5):
        again.metrics({"loss": 1.0}, step=step)
    again.finish("succeeded")
    (found,) = list_runs(bucket_machine("a"))
    assert (found.status, found.metrics) == ("succeeded", {"loss": 1.0})
    (kept,) = found.folder.glob("diverged-*.jsonl")
    assert b"111.0" in kept.read_bytes()


def test_one_bad_run_does_not_hide_the_others(
    bucket_machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = bucket_machine("a")
    with start_run(workspace, "train", job_id="job") as run:
        (run.folder / "note.txt").write_text("1")
    with start_run(workspace, "convert") as other:
        pass
    (run.folder / "note.txt").write_text("2")
    run.metrics({"loss": 1.0})
    assert {found.id for found in list_runs(bucket_machine("a"))} == {run.run_id, other.run_id}
    assert "note.txt differs from" in caplog.text
    with pytest.raises(AlreadyExistsError, match=r"note.txt differs from"):
        read_run(workspace, run.run_id)


@pytest.mark.process
@pytest.mark.parametrize("away_s", [2.0, pytest.param(30.0, marks=pytest.mark.soak, id="soak")])
def test_a_server_that_is_away_for_a_while_loses_nothing(
    bucket_machine: Machine, server: FaultyServer, tmp_path: Path, away_s: float
) -> None:
    workspace = bucket_machine("a")
    with start_run(workspace, "train", job_id="job") as run:
        for step in range(100):
            run.metrics({"loss": step}, step=step)
            if step % 20 == 0:
                server.away_for(away_s if step == 40 else 0.0)
                workspace.local_copy.runs.push(run.run_id)
    server.away_for(away_s)
    workspace_models(workspace).add("m", saved_model(tmp_path / "model"))
    found = read_run(bucket_machine("b"))
    lost = 100 - len(found.series["loss"])
    assert (lost, found.status, found.skipped_lines) == (0, "succeeded", 0)
    assert [v.number for v in workspace_models(bucket_machine("b")).versions("m")] == [1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timonel.storage.object_store.PATIENCE_S", 0.2)
    monkeypatch.setattr(ObjectStore.__init__, "__kwdefaults__", {"patience_s": 0.2})


@pytest.mark.process
def test_what_a_server_that_stays_away_missed_is_uploaded_later(
    bucket_machine: Machine, server: FaultyServer, impatient: None
) -> None:
    workspace = bucket_machine("a")
    run = start_run(workspace, "convert")
    run.metrics({"n": 1.0})
    server.fault = lambda *_: "away"
    with pytest.raises(UnavailableError, match="the server does not answer"):
        run.finish("succeeded")
    with pytest.raises(UnavailableError, match="FORMAT: the server does not answer"):
        bucket_machine("a")
    server.fault = lambda *_: None
    assert read_run(bucket_machine("b")).status == "running"
    assert [each.status for each in list_runs(bucket_machine("a"))] == ["succeeded"]
    found = read_run(bucket_machine("b"))
    assert (found.status, found.metrics) == ("succeeded", {"n": 1.0})


@pytest.mark.process
def test_the_first_error_of_a_run_is_the_one_reported(
    bucket_machine: Machine, server: FaultyServer, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        server.fault = lambda *_: "busy"
        raise InputError("the disk is full")

    with (
        pytest.raises(InputError, match="the disk is full"),
        start_run(bucket_machine("a"), "convert"),
    ):
        fail()
    assert "the server does not answer" in caplog.text
    server.fault = lambda *_: None
    list_runs(bucket_machine("a"))
    assert read_run(bucket_machine("b")).message == "the disk is full"


@pytest.mark.process
def test_expired_credentials_lose_nothing(bucket_machine: Machine, server: FaultyServer) -> None:
    run = start_run(bucket_machine("a"), "convert")
    server.fault = lambda *_: "expired"
    with pytest.raises(InputError, match="the credentials have expired: renew them"):
        run.finish("succeeded")
    server.fault = lambda *_: None
    list_runs(bucket_machine("a"))
    assert read_run(bucket_machine("b")).status == "succeeded"


@pytest.mark.process
def test_an_interrupted_upload_of_a_version_is_invisible_and_can_be_repeated(
    bucket_machine: Machine, server: FaultyServer, tmp_path: Path, impatient: None
) -> None:
    here, model = bucket_machine("a"), saved_model(tmp_path / "model")
    there = bucket_machine("b")
    interrupted = 0
    # An attempt first finds the numbers of earlier ones used.
    for allowed in (0, 1, 3, 5):
        left = iter([None] * allowed)
        server.fault = lambda method, *_, left=left: next(left, "away") if method == "PUT" else None
        try:
            workspace_models(here).add("m", model)
        except UnavailableError:
            interrupted += 1
            server.fault = lambda *_: None
            assert workspace_models(there).names() == []
            assert workspace_models(here).names() == []
    assert interrupted == 3
    server.fault = lambda *_: None
    (version,) = workspace_models(there).versions("m")
    assert (version.path / "saved_model.pb").read_bytes() == b"graph"


@pytest.mark.process
def test_a_slow_server_with_lost_answers_is_only_slow(
    bucket_machine: Machine, server: FaultyServer, tmp_path: Path
) -> None:
    asked = iter(range(10_000))
    server.fault = lambda *_: {0: "lost", 3: "slow", 6: "busy"}.get(next(asked) % 9)
    workspace = bucket_machine("a")
    with start_run(workspace, "train", job_id="job") as run:
        for step in range(5):
            run.metrics({"loss": step}, step=step)
            workspace.local_copy.runs.push(run.run_id)
    workspace_models(workspace).add("m", saved_model(tmp_path / "model"))
    found = read_run(bucket_machine("b"))
    assert (len(found.series["loss"]), found.skipped_lines) == (5, 0)
    assert workspace_models(bucket_machine("b")).get("m").number == 1


@pytest.mark.process
def test_nothing_is_downloaded_twice(
    bucket_machine: Machine, server: FaultyServer, tmp_path: Path
) -> None:
    here = bucket_machine("a")
    for _ in range(3):
        with start_run(here, "convert") as run:
            run.metrics({"n": 1.0})
    workspace_models(here).add("m", saved_model(tmp_path / "model"))
    server.downloads.clear()
    for _ in range(3):
        there = bucket_machine("b")
        list_runs(there)
        read_run(there)
        lineage(there, "last")
        workspace_models(there).get("m")
    counts = {path: n for path, n in server.downloads.items() if not path.endswith("/FORMAT")}
    assert set(counts.values()) == {1}
    assert len(counts) == 3 * 2 + 2
    server.downloads.clear()
    list_runs(bucket_machine("a"))
    assert set(server.downloads) == {f"/{here.uri[5:]}/FORMAT"}, "the writer has everything"


def test_a_workspace_in_a_bucket_is_made_once_and_can_be_used_without_the_bucket(
    faulty: tuple[str, FaultyServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, server = faulty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(NotFoundError, match=f"no workspace at {uri}"):
        find_workspace(uri, create=False)
    with pytest.raises(NotFoundError, match=f"no workspace at {uri}"):
        find_workspace(uri, create=False, offline=True)
    made = find_workspace(f"{uri}/")
    assert made.uri == uri
    assert made.root.stat().st_mode & 0o777 == 0o700
    assert made == find_workspace(uri, create=False)
    server.fault = lambda *_: "away"
    there = find_workspace(uri, create=False, offline=True)
    assert (there, there.local_copy) == (made, None)


def test_a_newer_workspace_in_a_bucket_is_refused(
    faulty: tuple[str, FaultyServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ObjectStore(faulty[0]).write("FORMAT", json.dumps({"kind": "workspace", "format": 99}).encode())
    with pytest.raises(FormatError, match="upgrade timonel"):
        find_workspace(faulty[0])
    assert list(tmp_path.iterdir()) == []
