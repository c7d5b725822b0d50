"""Jobs of a workspace with several engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from tests.engines.local.harness import LocalHarness
from timonel.engines import registry
from timonel.engines.local import LocalEngine
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace, find_workspace
from timonel.tracking import start_run
from timonel.training.jobs import find_job, list_jobs

pytestmark = pytest.mark.process


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return find_workspace(tmp_path / "workspace")


class OtherEngine(LocalEngine):
    """An engine with its jobs elsewhere."""

    name = "other"

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        return cls(workspace.root.parent / "elsewhere")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let engines be installed, by name."""

    def install(**engines: type[LocalEngine]) -> None:
        def entry_points(group: str, name: str | None = None) -> list[SimpleNamespace]:
            assert group == registry.GROUP
            return [
                SimpleNamespace(name=each, load=lambda engine=engine: engine)
                for each, engine in engines.items()
                if name in {None, each}
            ]

        monkeypatch.setattr(registry, "entry_points", entry_points)

    return install


def run_job(engine: LocalEngine, folder: Path, workspace: Workspace, job_id: str) -> None:
    start_run(workspace, "train", run_id=job_id, job_id=job_id, engine=engine.name)
    harness = LocalHarness.at(folder, workspace.root)
    harness.engine = engine
    harness.submit("ready", job_id=job_id)
    harness.wait(job_id)
    harness.close()


def test_a_job_is_found_on_the_engine_of_its_run(
    workspace: Workspace, install: Callable[..., None], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    install(local=LocalEngine, other=OtherEngine)
    run_job(LocalEngine(workspace.jobs), workspace.jobs, workspace, "here-1")
    run_job(OtherEngine(elsewhere), elsewhere, workspace, "there-1")
    assert [status.job_id for status in list_jobs(workspace)] == ["there-1", "here-1"]
    assert {ref: find_job(workspace, ref).engine.name for ref in ("here", "there-1", "last")} == {
        "here": "local",
        "there-1": "other",
        "last": "other",
    }
    run_job(OtherEngine(elsewhere), elsewhere, workspace, "here-2")
    with pytest.raises(SpecError, match="matches 2 jobs"):
        find_job(workspace, "here")


def test_a_job_has_the_name_of_its_run(workspace: Workspace) -> None:
    engine = LocalEngine(workspace.jobs)
    harness = LocalHarness.at(workspace.jobs, workspace.root)
    for job_id, name in (("train-1", "digits"), ("train-2", "digits"), ("train-3", "train")):
        start_run(workspace, "train", run_id=job_id, job_id=job_id, name=name, engine=engine.name)
        harness.submit("ready", job_id=job_id)
        harness.wait(job_id)
    harness.close()
    assert find_job(workspace, "digits").id == "train-2"
    assert find_job(workspace, "train").id == "train-3"
    with pytest.raises(NotFoundError, match="no job matches 'letters'"):
        find_job(workspace, "letters")


def test_jobs_of_a_missing_engine_do_not_hide_the_others(
    workspace: Workspace, install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    install(local=LocalEngine, third=LocalEngine)
    run_job(LocalEngine(workspace.jobs), workspace.jobs, workspace, "here-1")
    start_run(workspace, "train", run_id="gone-1", job_id="gone-1", engine="gone")
    assert [status.job_id for status in list_jobs(workspace)] == ["here-1"]
    assert "no such engine: 'gone'" in caplog.text
    with pytest.raises(NotFoundError, match="no job matches 'gone-1'"):
        find_job(workspace, "gone-1")
