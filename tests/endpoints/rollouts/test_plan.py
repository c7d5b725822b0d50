"""Decisions of rollouts, with the time and the measurements as arguments."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import Command, Phase, Rollout, RolloutState
from timonel.endpoints.rollouts.plan import Seen, Shift, begin, decide

NONE = Counts()
GOOD = Counts(requests=500, latencies={1: 500})
BAD = Counts(requests=500, errors=100, latencies={1: 500})


@dataclass
class World:
    """An endpoint and its rollout from version 1 to 2; revisions are recorded at once."""

    rollout: Rollout = field(
        default_factory=lambda: Rollout(
            to=2, base=1, revision=1, steps=(10, 50, 100), interval_s=60
        )
    )
    causes: list[str] = field(default_factory=lambda: ["deploy digits/1"])
    routed: int | None = None
    message: str | None = None
    now: float = 1000.0
    shares: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = begin(self.rollout)

    def turn(
        self, counts: Counts = NONE, *, seconds: float = 1.0, is_killed: bool = False
    ) -> Shift | None:
        """Decide once. If killed, the decision is stored, but not carried out."""
        self.now += seconds
        number = self.state.revision
        seen = Seen(
            revision=len(self.causes),
            cause=self.causes[number - 1] if number <= len(self.causes) else "",
            routed=len(self.causes) if self.routed is None else self.routed,
            message=self.message,
            counts={1: counts, 2: counts},
        )
        shift, state = decide(self.now, self.rollout, self.state, seen)
        # As the control plane reads it again after a restart.
        self.state = RolloutState.model_validate_json(state.model_dump_json())
        if shift is not None and not is_killed:
            self.causes.append(shift.cause)
            self.shares.append(shift.percent)
        return shift

    def step(self) -> None:
        """Begin a step and pass it."""
        self.turn()
        self.turn()
        self.turn(GOOD, seconds=60)

    def command(self, command: Command) -> None:
        update = {"command": command, "commanded_at": self.now}
        self.rollout = self.rollout.model_copy(update=update)


def test_a_good_version_is_promoted_step_by_step() -> None:
    world = World()
    assert world.turn() == Shift(10, "rollout to 2: 10%")
    world.turn()
    world.turn(GOOD)
    assert world.state.message == "watches version 2 for 60s at 10%"
    world.turn(GOOD, seconds=60)
    assert world.shares == [10, 50]
    world.turn(GOOD)  # of the step before: it does not count
    assert world.state.counts == {}
    world.turn(GOOD, seconds=60)
    assert world.shares == [10, 50, 100]
    world.turn()
    assert world.state.phase is Phase.PROMOTED
    assert world.state.message == "version 2 was promoted"
    assert world.turn(BAD) is None


def test_a_step_lasts_its_whole_interval() -> None:
    world = World()
    world.turn()
    world.turn()
    world.turn(GOOD, seconds=59.5)
    assert world.shares == [10]
    world.turn(seconds=0.5)
    assert world.shares == [10, 50]


def test_a_bad_version_is_rolled_back_at_once() -> None:
    world = World()
    world.step()
    world.turn()
    assert world.turn(BAD) == Shift(0, "rollout to 2: back to 1")
    world.turn()
    assert world.state.phase is Phase.ROLLED_BACK
    assert world.state.message == (
        "version 2 was rolled back: error_rate is 20% of 500 requests (limit 1%)"
    )


def test_without_requests_it_waits_and_says_so() -> None:
    world = World()
    world.turn()
    world.turn()
    world.turn(seconds=100_000)
    assert world.state.message == "waits for requests: version 2 had none at this step"
    world.turn(Counts(requests=20, latencies={1: 20}), seconds=100_000)
    assert world.state.message == "waits for requests: 20 of 100"
    world.turn(Counts(requests=100, latencies={1: 100}), seconds=100_000)
    assert world.state.message == (
        "waits for more requests to decide: error_rate is 0% of 120 requests (limit 1%)"
    )
    world.turn(GOOD)
    assert world.shares == [10, 50]


def test_a_version_that_does_not_start_is_rolled_back() -> None:
    world = World(routed=1, message="version 2 does not start: no such file")
    world.turn()
    world.turn()
    assert world.state.message == "version 2 does not start: no such file"
    world.turn(seconds=601)
    assert world.shares == [10, 0]
    assert world.state.message == (
        "version 2 was rolled back: it was not ready after 600s: "
        "version 2 does not start: no such file"
    )


def test_a_paused_rollout_takes_no_step() -> None:
    world = World()
    world.turn()
    world.turn()
    world.command(Command.PAUSE)
    world.turn(GOOD, seconds=600)
    world.turn(GOOD, seconds=600)
    assert world.state.phase is Phase.PAUSED
    assert world.state.message == "paused at 10% for version 2"
    assert world.shares == [10]
    world.command(Command.RESUME)
    world.turn(GOOD)
    assert world.state.phase is Phase.RUNNING
    world.turn(GOOD, seconds=60)
    assert world.shares == [10, 50]


def test_a_paused_rollout_is_rolled_back_too() -> None:
    world = World()
    world.turn()
    world.turn()
    world.command(Command.PAUSE)
    world.turn()
    world.turn(BAD)
    world.turn()
    assert world.state.phase is Phase.ROLLED_BACK
    assert world.shares == [10, 0]


@pytest.mark.parametrize("is_paused", [False, True])
def test_abort(is_paused: bool) -> None:
    world = World()
    world.step()
    if is_paused:
        world.command(Command.PAUSE)
        world.turn()
    world.command(Command.ABORT)
    assert world.turn() == Shift(0, "rollout to 2: back to 1")
    world.turn()
    assert (world.state.phase, world.state.message) == (Phase.ABORTED, "aborted")


def test_a_change_by_others_pauses() -> None:
    world = World()
    world.step()
    world.turn()
    world.causes.append("scale 1 to 3")
    world.turn(BAD)
    assert world.state.phase is Phase.PAUSED
    assert "paused, as revision 4 changed the endpoint; --resume sets 50%" in world.state.message
    world.turn(BAD, seconds=600)
    assert world.shares == [10, 50]
    world.command(Command.RESUME)
    assert world.turn() == Shift(50, "rollout to 2: 50%")
    assert world.state.revision == 5
    world.turn()
    world.turn(GOOD, seconds=60)
    assert world.shares == [10, 50, 50, 100]


def test_a_change_before_the_first_step_pauses() -> None:
    world = World()
    world.causes.append("deploy digits/3")
    assert world.turn() is None
    assert world.state.phase is Phase.PAUSED


def test_an_aborted_rollout_leaves_the_changes_of_others() -> None:
    world = World()
    world.step()
    world.causes.append("deploy digits/7")
    world.turn()
    world.command(Command.ABORT)
    assert world.turn() is None
    assert world.state.phase is Phase.ABORTED
    assert world.state.message == "aborted; the traffic stays that of revision 4"


@pytest.mark.parametrize("counts", [GOOD, BAD])
def test_a_killed_control_plane_carries_out_what_it_decided(counts: Counts) -> None:
    world = World()
    world.turn()
    world.turn()
    decided = world.turn(counts, seconds=60, is_killed=True)
    assert decided is not None
    assert world.shares == [10]
    assert world.turn() == decided
    assert world.shares == [10, decided.percent]
    assert world.turn() is None


def test_a_change_while_the_control_plane_is_down_pauses() -> None:
    world = World()
    world.turn()
    world.turn()
    world.turn(BAD, is_killed=True)
    world.causes.append("scale 1 to 3")  # with the number of the rollback
    assert world.turn() is None
    assert world.state.phase is Phase.PAUSED
    world.command(Command.RESUME)
    assert world.turn() == Shift(0, "rollout to 2: back to 1")
    world.turn()
    assert world.state.phase is Phase.ROLLED_BACK


def test_a_change_after_the_last_revision_does_not_hide_the_end() -> None:
    world = World()
    world.turn()
    world.turn()
    world.turn(BAD)
    world.causes.append("scale 1 to 3")
    world.turn()
    assert world.state.phase is Phase.ROLLED_BACK


def test_the_probability_of_error_is_that_of_the_rollout() -> None:
    """Rejecting takes more evidence with more steps."""
    rates = Counts(requests=100, errors=6, latencies={1: 100})
    short = World(Rollout(to=2, base=1, revision=1, steps=(50, 100)))
    long = World(Rollout(to=2, base=1, revision=1, steps=(*range(1, 90), 100)))
    for world in (short, long):
        world.turn()
        world.turn()
        world.turn(rates)
    assert short.shares[-1] == 0
    assert long.shares == [1]


def test_a_step_takes_enough_compared_answers() -> None:
    guards = ("error_rate<1%", "agreement>98%")
    world = World(Rollout(to=2, base=1, revision=1, steps=(10, 100), guards=guards))
    world.turn()
    world.turn()
    world.turn(GOOD)
    world.turn(GOOD, seconds=60)
    assert world.state.message == (
        "waits for answers to compare: of 2000 requests, the servers of both versions reported none"
    )
    world.turn(Counts(pairs=100, agreements=100))
    assert world.state.message.startswith("waits for more requests to decide: agreement is 100% (")
    world.turn(Counts(pairs=100, agreements=100))
    assert world.shares == [10, 100]


def test_answers_have_some_time_to_be_compared() -> None:
    guards = ("agreement>98%",)
    rollout = Rollout(to=2, base=1, revision=1, steps=(10, 100), interval_s=1, guards=guards)
    world = World(rollout)
    world.turn()
    world.turn()
    world.turn(GOOD, seconds=15)
    assert world.state.message.startswith("waits for more requests to decide: agreement is unknown")
    world.turn()
    assert world.state.message.startswith("waits for answers to compare: of 1000 requests")


def test_a_version_with_other_answers_is_rolled_back() -> None:
    guards = ("agreement>98%",)
    world = World(Rollout(to=2, base=1, revision=1, steps=(10, 100), guards=guards))
    world.turn()
    world.turn()
    world.turn(GOOD + Counts(pairs=30, agreements=20))
    world.turn()
    assert world.state.phase is Phase.ROLLED_BACK
    assert world.state.message.startswith("version 2 was rolled back: agreement is 66.67% (")
