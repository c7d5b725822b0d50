"""Runs between a bucket and the local copy of its workspace."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.storage.faulty import FaultyServer
from tests.storage.test_local_copy import Machine, copy_of
from tests.storage.test_workspace_contract import machine_of
from timonel.errors import InputError, NotFoundError
from timonel.storage import exclusive
from timonel.tracking import list_runs, start_run

Server = tuple[str, FaultyServer]


@pytest.fixture
def machine(faulty: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine_of(faulty[0], tmp_path, monkeypatch)


def test_events_of_all_runs_are_downloaded_in_parallel(faulty: Server, machine: Machine) -> None:
    here = machine("a")
    for run_id in ("one", "two"):
        with start_run(here, "convert", run_id=run_id) as run:
            for number in range(3):
                run.metrics({"n": number})
                copy_of(here).runs.push(run_id)
    there = machine("b")
    together = threading.Barrier(4, timeout=60)

    def wait(method: str, path: str) -> None:
        if method == "GET" and "/events/" in path:
            together.wait()

    faulty[1].before = wait
    found = {run.id: [point.value for point in run.series["n"]] for run in list_runs(there)}
    assert found == {"one": [0, 1, 2], "two": [0, 1, 2]}
    assert not [path for path in there.root.iterdir() if path.name.startswith(".tmp-")]


def test_two_processes_push_a_run_one_after_the_other(faulty: Server, machine: Machine) -> None:
    here = machine("a")
    run = start_run(here, "train", job_id="job")
    run.metrics({"loss": 1.0})
    faulty[1].seen.clear()
    push = threading.Thread(target=copy_of(here).runs.push, args=(run.run_id,))
    with exclusive(run.folder / ".push.lock"):
        push.start()
        push.join(0.3)
        assert push.is_alive()
        assert faulty[1].seen == [], "not even a listing, which would be out of date afterwards"
    push.join()
    assert any("/events/" in path for method, path, _ in faulty[1].seen if method == "PUT")


def test_a_run_that_is_not_here_cannot_be_pushed(machine: Machine) -> None:
    here = machine("a")
    with pytest.raises(NotFoundError, match="no run other in"):
        copy_of(here).runs.push("other")
    assert list(here.runs.iterdir()) == []


def test_a_full_disk_leaves_no_half_run(
    faulty: Server, machine: Machine, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("a")
    with start_run(here, "train", run_id="mine") as run:
        run.metrics({"loss": 1.0})
        (run.folder / "large").write_bytes(bytes(100_000))
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    from timonel.storage import find_workspace

    there = find_workspace(faulty[0])
    with pytest.raises(InputError, match=r"cannot write .*large: No space left on device"):
        list_runs(there)
    assert not (there.runs / "mine" / "run.json").exists()
