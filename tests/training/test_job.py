from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timonel.engines import RoleSpec
from timonel.storage import Workspace
from timonel.training.job import job_spec, roles
from timonel.training.request import JobOptions, check_request
from timonel.training.settings import Settings


def found(**options: Any) -> list[RoleSpec]:
    least = options.get("workers", 1)
    return list(roles(Settings.of({"min_workers": least, **options})))


CHIEF = RoleSpec(name="chief")


def test_workers_beside_the_first() -> None:
    assert found() == [CHIEF]
    assert found(workers=3) == [CHIEF, RoleSpec(name="worker", replicas=2)]


def test_a_range_of_workers() -> None:
    assert found(workers=8, min_workers=2)[1] == RoleSpec(name="worker", replicas=7, min_replicas=1)
    assert found(workers=8, min_workers=1)[1].least == 0


@pytest.mark.parametrize("strategy", ["parameter-server", "auto"])
def test_parameter_servers(strategy: str) -> None:
    chief, workers, ps = found(strategy=strategy, workers=2, ps=3)
    assert chief == CHIEF
    assert (workers.name, workers.replicas, workers.on_loss) == ("worker", 2, "restart-task")
    assert workers.is_serving
    assert workers.essential
    assert (ps.name, ps.replicas, ps.on_loss, ps.is_serving) == ("ps", 3, "restart-job", True)


def test_parameter_servers_go_on_with_fewer_workers() -> None:
    workers = found(workers=8, min_workers=2, ps=1)[1]
    assert (workers.replicas, workers.least) == (8, 2)


def test_an_evaluator_beside_them() -> None:
    evaluator = found(workers=2, evaluator=True)[-1]
    assert evaluator.name == "evaluator"
    assert evaluator.on_loss == "restart-task"
    assert not evaluator.essential


def test_a_script_that_distributes_itself_has_the_tasks_that_were_asked_for() -> None:
    assert found(strategy="none", workers=3, ps=1) == [
        CHIEF,
        RoleSpec(name="worker", replicas=2),
        RoleSpec(name="ps"),
    ]


def test_mpirun_is_one_task() -> None:
    assert found(launcher="mpi", workers=4) == [CHIEF]


def test_only_jobs_of_a_bucket_upload(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    request = check_request(
        tmp_path / "train.py", data=None, settings=Settings(), params=None, args=()
    )
    local, bucket = (
        job_spec(request, workspace, "job", JobOptions(seed=1))
        for workspace in (Workspace(tmp_path), Workspace(tmp_path, "s3://bucket/team"))
    )
    assert [each.module for each in local.sidecars] == ["timonel.tracking.mirrors.sidecar"]
    assert [each.module for each in bucket.sidecars] == [
        "timonel.training.upload",
        "timonel.tracking.mirrors.sidecar",
    ]
    assert local.folders == bucket.folders == ("runs/job",)
    assert bucket.preload == (*local.preload, "s3fs")
    assert bucket.args == ("--workspace", "s3://bucket/team", "--run", "job")
    assert bucket.epilogue is not None
    assert bucket.epilogue.args == ("s3://bucket/team", "job")
    assert str(tmp_path) not in str([bucket.args, bucket.sidecars, bucket.epilogue])
