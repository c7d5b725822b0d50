from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.manager.plan import (
    Candidate,
    Naming,
    Rule,
    Tracked,
    VersionPlan,
    VersionState,
    VersionStatus,
    after_failure,
    may_yet_serve,
    of_interest,
    plan,
    statuses,
)
from timonel.serving.settings.models import Aliased, Every, Latest, Specific
from timonel.serving.status import Code, StatusError

BROKEN = StatusError(Code.DATA_LOSS, "damaged")
SERVING = Tracked(VersionState.AVAILABLE, "a")
LATEST = Rule(Latest())
STRICT = Rule(Latest(), fall_back=False)
RESOURCE = Rule(Latest(), unloads_first=True)


def on_disk(*numbers, incomplete=(), changed=()):
    return [
        Candidate(n, f"/m/{n}", "b" if n in changed else "a", n not in incomplete)
        for n in sorted(numbers, reverse=True)
    ]


def decide(rule, candidates, tracked, now=0.0):
    todo = plan(rule, candidates, tracked, now)
    return [c.number for c in todo.load], list(todo.unload)


def failed(retry_at=None):
    return Tracked(VersionState.END, "a", 1, BROKEN, retry_at)


@pytest.mark.parametrize(
    ("tracked", "candidates", "expected"),
    [
        pytest.param({}, on_disk(1, 2, 3), ([3], []), id="the newest is loaded"),
        pytest.param({3: SERVING}, on_disk(3), ([], []), id="nothing to do"),
        pytest.param({1: SERVING}, on_disk(1, 2), ([2], []), id="new before old"),
        pytest.param(
            {1: SERVING, 2: Tracked(VersionState.LOADING, "a")},
            on_disk(1, 2),
            ([], []),
            id="the old one stays while the new one loads",
        ),
        pytest.param({1: SERVING, 2: SERVING}, on_disk(1, 2), ([], [1]), id="the old one goes"),
        pytest.param(
            {1: SERVING}, on_disk(1, 2, incomplete={2}), ([], []), id="half-written is not loaded"
        ),
        pytest.param({1: SERVING, 2: failed()}, on_disk(1, 2), ([], []), id="broken is left alone"),
        pytest.param(
            {1: SERVING, 2: failed()}, on_disk(1, 2, changed={2}), ([2], []), id="repaired is tried"
        ),
        pytest.param({2: failed()}, on_disk(1, 2), ([1], []), id="start beside a broken newest"),
        pytest.param(
            {1: Tracked(VersionState.END), 2: SERVING},
            on_disk(1),
            ([1], []),
            id="roll back loads first",
        ),
        pytest.param({1: SERVING, 2: SERVING}, on_disk(1), ([], [2]), id="roll back then unloads"),
        pytest.param(
            {1: failed(), 2: SERVING}, on_disk(1), ([], []), id="no roll back to a broken one"
        ),
        pytest.param({2: SERVING}, [], ([], [2]), id="an emptied folder unloads"),
        pytest.param(
            {2: Tracked(VersionState.UNLOADING, "a")},
            on_disk(2),
            ([], []),
            id="unloads before it reloads",
        ),
    ],
)
def test_latest(tracked, candidates, expected):
    assert decide(LATEST, candidates, tracked) == expected


def test_a_failure_that_may_pass_is_tried_again_when_it_is_due():
    tracked = {1: SERVING, 2: failed(retry_at=10.0)}
    assert decide(LATEST, on_disk(1, 2), tracked, now=9.9) == ([], [])
    assert decide(LATEST, on_disk(1, 2), tracked, now=10.0) == ([2], [])


def test_other_policies():
    assert decide(Rule(Latest(count=2)), on_disk(1, 2, 3), {}) == ([3, 2], [])
    assert decide(Rule(Every()), on_disk(1, 2, 3), {2: SERVING}) == ([3, 1], [])
    assert decide(Rule(Specific(versions=(1,))), on_disk(1), {2: SERVING}) == ([1], [])
    assert decide(Rule(Specific(versions=(1,))), on_disk(1), {1: SERVING, 2: SERVING}) == ([], [2])


def test_old_versions_behind_the_serving_one_are_not_looked_at():
    assert of_interest(LATEST, range(100), {98: SERVING}) == (99, 98)
    assert of_interest(LATEST, [1, 2], {}) == (2, 1)
    assert of_interest(Rule(Every()), [1, 2], {2: SERVING}) == (2, 1)
    assert of_interest(Rule(Specific(versions=(1, 7))), [1, 2], {}) == (1,)


def test_failures_are_counted_against_the_retries():
    record = Tracked(VersionState.LOADING, "a", attempts=2)
    again = after_failure(record, BROKEN, retries=2, retry_at=5.0, transient=True)
    assert (again.state, again.retry_at, again.attempts) == (VersionState.END, 5.0, 2)
    first = after_failure(Tracked(), BROKEN, retries=0, retry_at=5.0, transient=True)
    assert first.retry_at == 5.0  # it was not tried before
    record = Tracked(VersionState.LOADING, "a", attempts=3)
    assert after_failure(record, BROKEN, retries=2, retry_at=5.0, transient=True).retry_at is None
    assert after_failure(again, BROKEN, retries=9, retry_at=5.0, transient=False).retry_at is None


def test_statuses_are_ascending_and_carry_the_error():
    assert statuses({2: failed(), 1: SERVING}) == (
        VersionStatus(1, VersionState.AVAILABLE),
        VersionStatus(2, VersionState.END, Code.DATA_LOSS, "damaged"),
    )


@pytest.mark.parametrize(
    ("candidates", "tracked", "expected"),
    [
        ([], {}, False),
        (on_disk(1), {}, True),
        (on_disk(1), {1: failed()}, False),
        (on_disk(1), {1: failed(retry_at=9.0)}, True),
        (on_disk(1, changed={1}), {1: failed()}, True),
        (on_disk(1, incomplete={1}), {1: failed()}, True),
        (on_disk(1), {1: Tracked(VersionState.LOADING, "a")}, True),
    ],
)
def test_hope(candidates, tracked, expected):
    assert may_yet_serve(LATEST, candidates, tracked) is expected


records = st.builds(
    Tracked,
    state=st.sampled_from(
        [VersionState.LOADING, VersionState.AVAILABLE, VersionState.UNLOADING, VersionState.END]
    ),
    fingerprint=st.sampled_from(["a", "b"]),
    error=st.sampled_from([None, BROKEN]),
    retry_at=st.sampled_from([None, 0.0, 9.0]),
)
policies = st.one_of(
    st.builds(Latest, count=st.integers(1, 3)),
    st.just(Every()),
    st.builds(Specific, versions=st.lists(st.integers(1, 6), max_size=3).map(tuple)),
)


@given(policies, st.sets(st.integers(1, 6)), st.dictionaries(st.integers(1, 6), records), st.data())
def test_a_plan_never_takes_down_the_last_serving_version_for_nothing(
    policy, numbers, tracked, data
):
    incomplete = data.draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set()
    chosen = of_interest(Rule(policy), numbers, tracked)
    candidates = on_disk(*chosen, incomplete=incomplete)
    todo = plan(Rule(policy), candidates, tracked, now=5.0)
    serving = {n for n, record in tracked.items() if record.state is VersionState.AVAILABLE}
    assert set(todo.unload) <= serving
    if candidates and serving:
        assert serving - set(todo.unload)
    for candidate in todo.load:
        record = tracked.get(candidate.number)
        assert record is None or not record.in_memory
        assert candidate.complete or record.retry_at is not None
    assert not {c.number for c in todo.load} & set(todo.unload)


def simulate(rule, numbers, tracked):
    """Carry plans out until there is nothing left to do; every load succeeds."""
    tracked = dict(tracked)
    for _ in range(50):
        todo = plan(rule, on_disk(*of_interest(rule, numbers, tracked)), tracked, 0.0)
        if todo == VersionPlan():
            return tracked
        for candidate in todo.load:
            tracked[candidate.number] = SERVING
        for number in todo.unload:
            tracked[number] = Tracked(VersionState.END)
    raise AssertionError("plans go on for ever")


@given(
    st.integers(1, 3),
    st.sets(st.integers(1, 8), min_size=1),
    st.dictionaries(st.integers(1, 8), st.sampled_from([SERVING, Tracked(VersionState.END)])),
)
def test_plans_end_with_exactly_the_latest_versions(count, numbers, tracked):
    end = simulate(Rule(Latest(count=count)), numbers, tracked)
    serving = {n for n, record in end.items() if record.state is VersionState.AVAILABLE}
    assert serving == set(sorted(numbers)[-count:])


@pytest.mark.parametrize(
    ("tracked", "candidates", "expected"),
    [
        pytest.param({1: SERVING}, on_disk(1, 2), ([], [1]), id="unloads first"),
        pytest.param(
            {1: Tracked(VersionState.UNLOADING, "a")},
            on_disk(1, 2),
            ([], []),
            id="waits for the unload",
        ),
        pytest.param({1: Tracked(VersionState.END)}, on_disk(1, 2), ([2], []), id="then loads"),
        pytest.param({2: failed()}, on_disk(1, 2), ([1], []), id="goes back if that fails"),
        pytest.param({2: failed(0.0)}, on_disk(1, 2), ([1], []), id="goes back before it retries"),
        pytest.param(
            {1: SERVING, 2: failed(0.0)}, on_disk(1, 2), ([], []), id="no gap for a retry"
        ),
        pytest.param({2: failed(0.0)}, on_disk(2), ([2], []), id="retries where nothing serves"),
        pytest.param(
            {1: failed(0.0), 2: failed(0.0)}, on_disk(1, 2), ([2], []), id="retries one at a time"
        ),
        pytest.param(
            {1: SERVING, 2: failed()},
            on_disk(1, 2, changed={2}),
            ([], [1]),
            id="a repaired one is worth a gap",
        ),
        pytest.param(
            {1: SERVING},
            on_disk(1, 2, incomplete={2}),
            ([], []),
            id="no gap for a half-written one",
        ),
        pytest.param({1: SERVING}, [], ([], [1]), id="an emptied folder unloads"),
    ],
)
def test_resource_preserving(tracked, candidates, expected):
    assert decide(RESOURCE, candidates, tracked) == expected


@pytest.mark.parametrize(
    ("tracked", "candidates", "expected"),
    [
        pytest.param({2: failed()}, on_disk(1, 2), ([], []), id="a broken newest has no stand-in"),
        pytest.param({1: SERVING, 2: failed()}, on_disk(1, 2), ([], []), id="what serves is kept"),
        pytest.param({2: failed(0.0)}, on_disk(1, 2), ([2], []), id="retried when it is due"),
        pytest.param(
            {1: SERVING, 2: failed()}, on_disk(1, 2, changed={2}), ([2], []), id="repaired is tried"
        ),
        pytest.param({1: SERVING, 2: SERVING}, on_disk(1, 2), ([], [1]), id="the old one goes"),
        pytest.param({1: SERVING, 2: SERVING}, on_disk(1), ([], [2]), id="roll back"),
    ],
)
def test_without_a_fall_back(tracked, candidates, expected):
    assert decide(STRICT, candidates, tracked) == expected


def test_without_a_fall_back_an_older_version_is_no_hope():
    assert may_yet_serve(STRICT, on_disk(1, 2), {2: failed()}) is False
    assert may_yet_serve(STRICT, on_disk(1, 2), {2: failed(retry_at=9.0)}) is True


def test_versions_with_a_label_are_kept():
    rule = Rule(Latest(), keep=frozenset({1}))
    assert of_interest(rule, [1, 2, 3], {3: SERVING}) == (3, 1)
    assert decide(rule, on_disk(1, 3), {1: SERVING, 3: SERVING}) == ([], [])
    assert decide(rule, on_disk(1, 3), {3: SERVING}) == ([1], [])
    rule = Rule(Specific(versions=(2,)), keep=frozenset({1}))
    assert of_interest(rule, [1, 2, 3], {}) == (2, 1)


def test_a_failure_is_not_told_while_there_are_attempts_left():
    tracked = {1: failed(retry_at=9.0), 2: failed()}
    assert [s.state for s in statuses(tracked, retrying_is_loading=True)] == [
        VersionState.LOADING,
        VersionState.END,
    ]
    assert statuses(tracked)[0].code is Code.DATA_LOSS


NAMES = st.dictionaries(st.sampled_from(["champion", "candidate"]), st.integers(1, 4))
POLICIES = [Latest(), Every(), Specific(versions=(2,)), Aliased(alias="champion")]


def test_an_alias_is_served_by_the_version_before_until_the_new_one_is_loaded():
    policy = Aliased(alias="champion")
    naming = Naming().moved({"champion": 1, "candidate": 3}, policy).published([1])
    assert naming.served["champion"] == 1
    naming = naming.moved({"champion": 2}, policy)
    assert naming.rule(policy, unloads_first=False, as_tfserving=False) == Rule(
        Specific(versions=(2,)), keep=frozenset({1, 2})
    )
    assert naming.published([1]).served["champion"] == 1
    naming = naming.published([1, 2])
    assert naming.served["champion"] == 2
    rule = naming.rule(policy, unloads_first=False, as_tfserving=False)
    assert rule.keep == {2}


def test_a_removed_alias_keeps_what_is_served_by_its_name():
    policy = Aliased(alias="champion")
    naming = Naming().moved({"champion": 1, "candidate": 2}, policy).published([1, 2])
    assert naming.moved({}, policy).aliases == {"champion": 1}
    assert naming.moved({}, Latest()).aliases == {}


def test_aliases_keep_versions_only_where_labels_do():
    naming = Naming(labels={"stable": 4}).moved({"champion": 1}, Latest())

    def kept(policy, **options):
        return naming.rule(
            policy, **{"unloads_first": False, "as_tfserving": False, **options}
        ).keep

    assert kept(Latest()) == {1, 4}
    assert kept(Specific(versions=(2,))) == {4}
    assert kept(Latest(), as_tfserving=True) == frozenset()


@given(st.lists(NAMES, min_size=1, max_size=6), st.sampled_from(POLICIES), st.booleans())
def test_an_alias_that_answered_answers_through_all_moves(moves, policy, as_tfserving):
    """The server loads and unloads one version at a time, as planned."""
    naming, loaded, known = Naming(), set(), on_disk(1, 2, 3, 4)
    answering: set[str] = set()
    for aliases in moves:
        naming = naming.moved(aliases, policy).published(loaded)
        for _ in range(20):
            rule = naming.rule(policy, unloads_first=False, as_tfserving=as_tfserving)
            tracked = dict.fromkeys(loaded, SERVING)
            seen = [c for c in known if c.number in of_interest(rule, [1, 2, 3, 4], tracked)]
            todo = plan(rule, seen, tracked, 0.0)
            if todo.load:
                loaded.add(todo.load[0].number)
            elif todo.unload:
                loaded.discard(todo.unload[0])
            else:
                break
            naming = naming.published(loaded)
            if not as_tfserving and not isinstance(policy, Specific):
                there = {a for a, n in naming.served.items() if n in loaded}
                if isinstance(policy, Aliased):
                    there &= {"champion"}  # no other one is kept
                assert answering & naming.aliases.keys() <= there
                answering |= there & naming.aliases.keys()
        answering &= naming.aliases.keys()
        if isinstance(policy, Aliased) and "champion" in naming.aliases:
            assert loaded == {naming.aliases["champion"]}
            answering = {"champion"}
