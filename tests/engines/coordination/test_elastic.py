from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.engines.coordination.job import Job, spec_of
from tests.engines.coordination.strategies import causes, policies, role_lists
from timonel.engines.base import FailureCause, JobState
from timonel.engines.coordination.elastic import (
    ElasticSlots,
    check_sizes,
    record_loss,
    recover,
    request_sizes,
    resized,
    sizes,
)
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.generations import DRAIN_GRACE_S
from timonel.engines.coordination.lifecycle import (
    Begin,
    ScaleRequested,
    StartGeneration,
    StopRequested,
    StopTasks,
    TasksMissing,
)
from timonel.engines.spec import RestartPolicy, RoleSpec
from timonel.errors import SpecError

DONE = TaskExit(exit_code=0)
LEFT = TaskExit(exit_code=75)
CRASHED = TaskExit(signal=11)
KILLED = TaskExit(signal=15)


def job_of(**fields: object) -> Job:
    worker = RoleSpec(name="worker", replicas=3, min_replicas=1)
    policy = RestartPolicy.model_validate({"max_restarts": 5, "backoff_s": 1, **fields})
    return Job(spec_of(("chief", 1), worker, restart=policy, stop_grace_s=20))


def start(generation: int, workers: int) -> StartGeneration:
    return StartGeneration(generation, {"chief": 1, "worker": workers})


class TestDecisions:
    @given(st.data(), role_lists(), policies)
    def test_sizes_stay_within_their_bounds(
        self, data: st.DataObject, roles: tuple[RoleSpec, ...], policy: RestartPolicy
    ) -> None:
        slots, now = ElasticSlots(), 0.0
        names = st.sampled_from([role.name for role in roles])
        for _ in range(data.draw(st.integers(0, 12))):
            now += data.draw(st.floats(0, 100))
            if data.draw(st.booleans()):
                slots = request_sizes(
                    roles, slots, {data.draw(names): data.draw(st.integers(-9, 9))}
                )
            else:
                count, ran_s = data.draw(st.integers(1, 3)), data.draw(st.floats(0, 300))
                cause = data.draw(causes)
                name = data.draw(names)
                slots = record_loss(
                    roles, slots, name, cause, policy, count=count, ran_s=ran_s, now=now
                )
            slots = recover(slots, now)
            found = sizes(roles, slots)
            assert all(role.least <= found[role.name] <= role.replicas for role in roles)
            smaller = resized(roles, found)
            assert sum(role.replicas for role in smaller) == sum(found.values())
            assert slots.wake_at is None or slots.wake_at > now
        # Whatever was left out is back in the end.
        assert slots.wake_at is None or slots.wake_at <= now + policy.rest_s * 32
        assert recover(slots, now + policy.rest_s * 32 + 1).resting == ()

    def test_a_slot_rests_longer_each_time(self) -> None:
        roles = (RoleSpec(name="worker", replicas=3, min_replicas=1),)
        policy, slots, rests = RestartPolicy(rest_s=60, reset_after_s=600), ElasticSlots(), []
        for _ in range(8):
            slots = record_loss(
                roles, slots, "worker", FailureCause.CRASHED, policy, ran_s=1, now=0
            )
            rests.append(slots.wake_at)
            slots = recover(slots, 1e9)
        assert rests == [None, 60, 120, 240, 480, 960, 1920, 1920]

    def test_a_slot_per_lost_task_rests(self) -> None:
        roles = (RoleSpec(name="worker", replicas=9, min_replicas=1),)
        policy, lost = RestartPolicy(), ElasticSlots()
        left = []
        for count in ({}, {"count": 3}, {"count": 9}):
            lost = record_loss(
                roles, lost, "worker", FailureCause.START_TIMEOUT, policy, **count, ran_s=0, now=0
            )
            left.append(sizes(roles, lost)["worker"])
        assert left == [8, 5, 1]

    def test_a_wish_is_checked_before_it_is_recorded(self) -> None:
        roles = (RoleSpec(name="chief"), RoleSpec(name="worker", replicas=3, min_replicas=1))
        check_sizes(roles, {"worker": 1})
        with pytest.raises(SpecError, match="expected 1 to 3 workers, got 0"):
            check_sizes(roles, {"worker": 0})
        with pytest.raises(SpecError, match="the size of role ps is fixed"):
            check_sizes(roles, {"ps": 1})

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": "chief", "min_replicas": 0}, "the chief cannot be elastic"),
            (
                {"name": "worker", "min_replicas": 2},
                "min_replicas of worker is 2, more than its 1 replicas",
            ),
        ],
    )
    def test_bounds_that_cannot_be_are_refused(
        self, fields: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ValidationError, match=message):
            RoleSpec.model_validate(fields)


class TestJobs:
    def test_a_wish_has_the_gang_save_and_leave(self) -> None:
        job = job_of()
        job.run()
        names = ("chief-0", "worker-0", "worker-1", "worker-2")
        assert job.tell(ScaleRequested({"worker": 1})) == [StopTasks(1, names, 20)]
        assert job.state.status.message == "continues with 2 tasks instead of 4"
        assert job.tell(ScaleRequested({"worker": 2})) == []
        for name in names[:-1]:
            assert job.exit(name, LEFT) == []
        assert job.exit(names[-1], LEFT) == [start(2, 2)]
        job.all_ready()
        assert job.state.status.restarts == 0
        assert job.state.status.sizes[0].now == 2

    def test_a_wish_before_the_start_is_the_first_size(self) -> None:
        job = job_of()
        job.tell(ScaleRequested({"worker": 2}))
        assert job.tell(Begin()) == [start(1, 2)]

    def test_a_wish_while_starting_waits_until_all_are_up(self) -> None:
        job = job_of()
        job.tell(Begin())
        assert job.tell(ScaleRequested({"worker": 2})) == []
        for name in ("chief-0", "worker-0", "worker-1"):
            assert job.ready(name) == []
        assert [type(action) for action in job.ready("worker-2")] == [StopTasks]

    def test_a_job_that_comes_to_its_end_keeps_its_size(self) -> None:
        job = job_of()
        job.run()
        job.exit("worker-0", DONE)
        assert job.tell(ScaleRequested({"worker": 2})) == []

    def test_a_job_that_ends_while_it_leaves_has_succeeded(self) -> None:
        job = job_of()
        job.run()
        job.tell(ScaleRequested({"worker": 2}))
        job.exit_all(DONE)
        assert job.state.status.state is JobState.SUCCEEDED

    def test_a_stop_while_it_leaves_is_a_stop(self) -> None:
        job = job_of()
        job.run()
        job.tell(ScaleRequested({"worker": 2}), StopRequested())
        job.exit_all(LEFT)
        assert job.state.status.state is JobState.STOPPED

    def test_a_lost_task_is_replaced_once_and_then_left_out_for_a_while(self) -> None:
        job = job_of(rest_s=60)
        job.run()
        job.exit("worker-1", KILLED)
        job.exit_all(LEFT)
        assert job.wait() == [start(2, 3)]
        job.all_ready()
        job.exit("worker-2", KILLED)
        lost_at = job.now
        job.exit_all(LEFT)
        assert job.wait() == [start(3, 2)]
        job.all_ready()
        assert job.state.wake_at == lost_at + 60
        assert [type(action) for action in job.wait()] == [StopTasks]
        restarts = job.state.status.restarts
        job.exit_all(LEFT)
        assert job.actions[-1] == start(4, 3)
        assert job.state.status.restarts == restarts == 2

    def test_tasks_without_a_machine_are_left_out_for_a_while(self) -> None:
        job = job_of(rest_s=60)
        job.run()
        job.exit("worker-1", KILLED)
        job.exit_all(LEFT)
        assert job.wait() == [start(2, 3)]
        missing_at = job.now
        assert job.tell(TasksMissing(1, ("worker-1",))) == []
        assert job.tell(TasksMissing(2, ("worker-1",))) == [start(3, 2)]
        assert job.state.status.message == "continues with 3 tasks instead of 4"
        assert job.state.status.cause is None
        job.all_ready()
        assert job.state.status.restarts == 1
        assert job.state.wake_at == missing_at + 60
        job.wait()
        job.exit_all(LEFT)
        assert job.actions[-1] == start(4, 3)

    def test_a_generation_waits_for_tasks_that_it_needs(self) -> None:
        job = job_of()
        job.tell(Begin())
        assert job.tell(TasksMissing(1, ("chief-0",))) == []
        job.ready("chief-0")
        assert job.tell(TasksMissing(1, ("worker-1",))) == []  # it has begun

    def test_a_loss_long_after_another_stands_for_itself(self) -> None:
        job = job_of(reset_after_s=600)
        job.run()
        for generation in (2, 3, 4):
            job.now += 600
            job.exit("worker-1", KILLED)
            job.exit_all(LEFT)
            assert job.wait() == [start(generation, 3)]
            job.all_ready()

    def test_those_that_do_not_come_up_are_left_out_at_once(self) -> None:
        job = job_of()
        job.tell(Begin())
        job.ready("chief-0")
        job.ready("worker-0")
        stopped = job.wait()
        assert stopped == [
            StopTasks(1, ("chief-0", "worker-0", "worker-1", "worker-2"), DRAIN_GRACE_S, True)
        ]
        job.exit_all(LEFT)
        assert job.wait() == [start(2, 1)]

    def test_the_fewest_are_kept_and_then_the_usual_rules_hold(self) -> None:
        job = job_of(max_restarts=20)
        job.run()
        while not job.state.status.state.is_final:
            job.exit("worker-0", CRASHED)
            job.exit_all(LEFT)
            if not job.state.status.state.is_final:
                job.wait()
                job.all_ready()
        started = [a.sizes["worker"] for a in job.actions if isinstance(a, StartGeneration)]
        assert started == [3, 3, 2, 1]
        assert job.state.status.cause is FailureCause.CRASHED
        assert "again at the same point" in (job.state.status.message or "")
