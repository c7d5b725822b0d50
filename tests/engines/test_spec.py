"""What follows from a job's specification."""

from __future__ import annotations

import pytest

from timonel.engines.spec import JobSpec, RoleSpec, hang_timeout_s


@pytest.mark.parametrize(("whole", "part"), [(8.0, 6.0), (None, None)])
def test_who_is_restarted_in_place_is_taken_for_hung_first(
    whole: float | None, part: float | None
) -> None:
    spec = JobSpec(
        job_id="one",
        module="m",
        roles=(RoleSpec(name="chief"), RoleSpec(name="worker", on_loss="restart-task")),
        hang_timeout_s=whole,
    )
    assert [hang_timeout_s(spec, role) for role in spec.roles] == [whole, part]


@pytest.mark.parametrize("folder", ["", "/runs", "runs/", "runs//one", "../runs", "runs/./one"])
def test_shared_folders_lie_in_the_workspace(folder: str) -> None:
    leader = RoleSpec(name="chief")
    assert JobSpec(job_id="one", module="m", roles=(leader,), folders=("runs/one",)).folders
    with pytest.raises(ValueError, match="expected a folder relative to the workspace"):
        JobSpec(job_id="one", module="m", roles=(leader,), folders=(folder,))


def test_roles_have_a_maximum_of_tasks() -> None:
    assert RoleSpec(name="worker", replicas=10_000).least == 10_000
    with pytest.raises(ValueError, match="less than or equal to 10000"):
        RoleSpec(name="worker", replicas=10_001)
