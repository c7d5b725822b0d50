"""Plans carried out step by step, in any order of what may happen to a model's versions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from timonel.serving.manager.plan import (
    Candidate,
    Rule,
    Tracked,
    VersionState,
    after_failure,
    of_interest,
    plan,
)
from timonel.serving.manager.reload import admit
from timonel.serving.settings.models import Every, Latest, ModelSettings, Specific
from timonel.serving.status import Code, StatusError

NUMBERS = st.integers(1, 5)
POLICIES = st.one_of(
    st.builds(Latest, count=st.integers(1, 2)),
    st.just(Every()),
    st.builds(Specific, versions=st.lists(NUMBERS, max_size=2).map(tuple)),
)
BROKEN = StatusError(Code.INTERNAL, "broken")


class Plans(RuleBasedStateMachine):
    """One model. What is on disk is a fingerprint and whether it can be loaded, by number."""

    def __init__(self):
        super().__init__()
        self.disk = {}
        self.tracked = {}
        self.model = ModelSettings(name="m", base_path="/m")
        self.writes = 0
        self.now = 0.0
        self.kept = set()

    @initialize(unloads_first=st.booleans())
    def begin(self, unloads_first):
        self.unloads_first = unloads_first

    @property
    def wish(self):
        keep = frozenset(self.model.labels.values())
        return Rule(self.model.policy, self.unloads_first, keep)

    def serving(self):
        return {n for n, record in self.tracked.items() if record.state is VersionState.AVAILABLE}

    def in_memory(self):
        return {n for n, record in self.tracked.items() if record.in_memory}

    @rule(number=NUMBERS, good=st.booleans())
    def write(self, number, good):
        self.writes += 1
        self.disk[number] = (str(self.writes), good)
        self.look()

    @precondition(lambda self: self.disk)
    @rule(data=st.data())
    def remove(self, data):
        number = data.draw(st.sampled_from(sorted(self.disk)))
        del self.disk[number]
        record = self.tracked.get(number)
        if record is not None and record.state is VersionState.END:
            self.tracked[number] = Tracked(VersionState.END, error=record.error)
        self.look()

    @rule(policy=POLICIES, labels=st.dictionaries(st.sampled_from("xy"), NUMBERS, max_size=2))
    def configure(self, policy, labels):
        wanted = ModelSettings(name="m", base_path="/m", policy=policy, labels=labels)
        serving = self.serving()
        try:
            admit([self.model], [wanted], {"m": serving}, labels_may_wait=False)
        except StatusError:
            assert set(labels.values()) - serving
            return
        assert set(labels.values()) <= serving
        self.model = wanted
        self.kept = set(labels.values())
        self.look()

    @precondition(lambda self: VersionState.LOADING in {r.state for r in self.tracked.values()})
    @rule(data=st.data())
    def end_a_load(self, data):
        loading = [n for n, r in self.tracked.items() if r.state is VersionState.LOADING]
        number = data.draw(st.sampled_from(sorted(loading)))
        record = self.tracked[number]
        good = self.disk.get(number, ("", False)) == (record.fingerprint, True)
        if good:
            self.tracked[number] = Tracked(VersionState.AVAILABLE, record.fingerprint)
        else:
            self.tracked[number] = after_failure(
                record, BROKEN, retries=1, retry_at=self.now + 10, transient=True
            )
        self.look()

    @precondition(lambda self: VersionState.UNLOADING in {r.state for r in self.tracked.values()})
    @rule(data=st.data())
    def end_an_unload(self, data):
        leaving = [n for n, r in self.tracked.items() if r.state is VersionState.UNLOADING]
        self.tracked[data.draw(st.sampled_from(sorted(leaving)))] = Tracked(VersionState.END)
        self.look()

    @rule()
    def wait(self):
        self.now += 10
        self.look()

    def look(self):
        """Carry out what the plan says now."""
        before = self.serving()
        chosen = of_interest(self.wish, self.disk, self.tracked)
        candidates = [Candidate(n, f"/m/{n}", self.disk[n][0]) for n in chosen]
        todo = plan(self.wish, candidates, self.tracked, self.now)
        if self.unloads_first and todo.load:
            beginning = {candidate.number for candidate in todo.load}
            count = self.model.policy.count if isinstance(self.model.policy, Latest) else 9
            room = count + len(set(self.model.labels.values()))
            assert len(self.in_memory() | beginning) <= room, "too many in memory"
        for candidate in todo.load:
            old = self.tracked.get(candidate.number)
            assert old is None or not old.in_memory
            attempts = old.attempts if old and old.fingerprint == candidate.fingerprint else 0
            self.tracked[candidate.number] = Tracked(
                VersionState.LOADING, candidate.fingerprint, attempts + 1
            )
        for number in todo.unload:
            assert number in before
            self.tracked[number] = Tracked(VersionState.UNLOADING, self.tracked[number].fingerprint)
        self.kept &= set(self.disk)
        if not self.unloads_first and candidates and before:
            assert self.serving(), "nothing serves any more"

    def settle(self):
        """Let everything that was begun come to its end."""
        for _ in range(200):
            busy = [n for n, r in self.tracked.items() if r.state is not VersionState.AVAILABLE]
            busy = [n for n in busy if self.tracked[n].in_memory]
            if not busy:
                self.now += 10
            for number in busy:
                record = self.tracked[number]
                good = self.disk.get(number, ("", False)) == (record.fingerprint, True)
                if record.state is VersionState.UNLOADING:
                    self.tracked[number] = Tracked(VersionState.END)
                elif good:
                    self.tracked[number] = Tracked(VersionState.AVAILABLE, record.fingerprint)
                else:
                    self.tracked[number] = after_failure(
                        record, BROKEN, retries=1, retry_at=self.now + 10, transient=True
                    )
            state = dict(self.tracked)
            self.look()
            if not busy and state == self.tracked and not self.retries():
                return
        raise AssertionError("plans go on for ever")

    def retries(self):
        """Return whether a retry is due that the plan does not put off."""
        if self.unloads_first and self.in_memory():
            return False
        chosen = of_interest(self.wish, self.disk, self.tracked)
        records = [self.tracked.get(n) for n in chosen]
        return any(r is not None and r.retry_at is not None for r in records)

    @rule()
    def end_well(self):
        self.settle()
        good = {n for n, (_, fine) in self.disk.items() if fine}
        policy = self.model.policy
        wanted = good & set(policy.versions) if isinstance(policy, Specific) else good
        assert bool(self.serving()) >= bool(wanted), "a good version is there and none serves"
        if isinstance(policy, Latest) and wanted:
            # What serves may have been replaced on disk since; what is newest and good serves.
            assert max(self.serving()) >= max(wanted)

    @invariant()
    def labels_never_point_at_nothing(self):
        assert self.kept <= self.serving()


Plans.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPlans = Plans.TestCase
