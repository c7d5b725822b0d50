from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timonel.retention.plan import DeletionPlan, Item, Key, expired, plan

NAMES = [("run", str(number)) for number in range(5)]
KEYS = st.sets(st.sampled_from(NAMES))


@st.composite
def inventories(draw: st.DrawFn) -> dict[Key, Item]:
    """Items that were made from items before them."""
    items = {}
    for number, key in enumerate(NAMES):
        earlier = st.sets(st.sampled_from(NAMES[:number])) if number else st.just(set())
        items[key] = Item(
            key,
            created_at=draw(st.floats(0, 100)),
            group=draw(st.sampled_from(["a", "b", None])),
            needs=frozenset(draw(earlier)),
            parts=frozenset(draw(earlier)),
            pin=draw(st.sampled_from([None, None, "it is champion"])),
            block=draw(st.sampled_from([None, None, None, "it is running"])),
        )
    return items


def the(name: str, **fields: object) -> Item:
    return Item(("run", name), **fields)  # type: ignore[arg-type]


def items(*made: Item) -> dict[Key, Item]:
    return {each.key: each for each in made}


@given(inventories(), KEYS, st.booleans())
def test_whatever_stays_has_what_it_was_made_from(
    known: dict[Key, Item], chosen: set[Key], force: bool
) -> None:
    found = plan(known, chosen, force=force)
    gone = set(found.deleted)
    assert not gone & found.kept.keys()
    assert chosen <= gone | found.kept.keys()
    assert not any(known[key].block for key in gone)
    if not force:
        assert not any(known[key].pin for key in gone)
        for key in known.keys() - gone:
            assert not known[key].needs & gone


@given(inventories(), KEYS)
def test_nothing_stays_without_a_reason(known: dict[Key, Item], chosen: set[Key]) -> None:
    found = plan(known, chosen)
    gone = set(found.deleted)
    for key in found.kept:
        item = known[key]
        needed = any(key in known[other].needs for other in known.keys() - gone)
        assert item.block or item.pin or needed


@given(inventories(), KEYS)
def test_force_deletes_all_but_what_runs(known: dict[Key, Item], chosen: set[Key]) -> None:
    found = plan(known, chosen, force=True)
    assert set(found.kept.values()) <= {"it is running"}


@given(inventories(), st.floats(0, 100), st.integers(0, 3))
def test_the_newest_of_each_group_never_expire(
    known: dict[Key, Item], age_s: float, keep_last: int
) -> None:
    found = expired(known, 100.0, older_than_s=age_s, keep_last=keep_last)
    assert all(known[key].group is not None for key in found)
    assert all(100.0 - known[key].created_at > age_s for key in found)
    for group in ("a", "b"):
        members = [item for item in known.values() if item.group == group]
        left = [item for item in members if item.key not in found]
        assert len(left) >= min(keep_last, len(members))
        old = [item for item in left if 100.0 - item.created_at > age_s]
        assert len(old) <= keep_last


def test_what_stays_keeps_its_parts() -> None:
    job = Item(("job", "1"))
    known = items(
        the("1", parts=frozenset({job.key})), job, the("export", needs=frozenset({("run", "1")}))
    )
    assert plan(known, [("run", "1")]) == DeletionPlan(
        (), {("run", "1"): "run export was made from it"}
    )
    assert plan(known, [("run", "1"), job.key]).deleted == (job.key,)


def test_reasons_name_what_needs_an_item_through_the_whole_chain() -> None:
    known = items(
        the("data"),
        the("train", needs=frozenset({("run", "data")})),
        Item(("model", "cats/3"), needs=frozenset({("run", "train")}), pin="it is champion"),
    )
    found = plan(known, [("run", "data"), ("run", "train")])
    assert found == DeletionPlan(
        (),
        {
            ("run", "train"): "model cats/3 was made from it",
            ("run", "data"): "run train was made from it",
        },
    )
    assert plan(known, [("model", "cats/3")]).kept == {("model", "cats/3"): "it is champion"}
    assert plan(known, known, force=True).deleted == tuple(known)


def test_parts_go_with_the_whole_unless_others_need_them() -> None:
    trials = frozenset({("run", "1"), ("run", "2")})
    known = items(
        the("study", needs=trials, parts=trials),
        the("1"),
        the("2"),
        the("export", needs=frozenset({("run", "2")})),
    )
    found = plan(known, [("run", "study")])
    assert found.deleted == (("run", "study"), ("run", "1"))
    assert found.kept == {("run", "2"): "run export was made from it"}
    assert plan(known, [("run", "1")]).kept == {("run", "1"): "run study was made from it"}
