from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.storage.aliases import Aliases, check_alias, split_alias, version_named


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "cats") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/m"


def test_a_move_is_seen_by_others_with_who_made_it(place: str) -> None:
    mine, others = Aliases(place), Aliases(place)
    assert others.read() == {}
    mine.move("champion", 7)
    mine.move("candidate", 8)
    assert others.read() == {"champion": 7, "candidate": 8}
    change = others.move("champion", 8, reason="accuracy 0.9, was 0.8")
    assert mine.read() == {"champion": 8, "candidate": 8}
    assert (change.number, change.before, change.version) == (3, 7, 8)
    assert "@" in change.by
    mine.move("candidate", None)
    assert others.read() == {"champion": 8}
    history = Aliases(place).history()
    assert [(each.alias, each.before, each.version) for each in history] == [
        ("champion", None, 7),
        ("candidate", None, 8),
        ("champion", 7, 8),
        ("candidate", 8, None),
    ]
    assert history[2].reason == "accuracy 0.9, was 0.8"


def test_a_repeated_move_adds_nothing(place: str) -> None:
    aliases = Aliases(place)
    first = aliases.move("champion", 7)
    assert aliases.move("champion", 7) == first
    assert len(aliases.history()) == 1


def test_no_move_is_lost_among_several_writers(place: str) -> None:
    def move(number: int) -> None:
        Aliases(place).move(f"a{number % 4}", number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(16)))
    history = Aliases(place).history()
    assert sorted(each.version or 0 for each in history) == list(range(16))
    state: dict[str, int] = {}
    for each in history:  # each writer saw the changes before its own
        assert each.before == state.get(each.alias)
        assert each.version is not None
        state[each.alias] = each.version
        assert each.aliases == state


def test_a_condition_is_checked_against_what_others_made_meanwhile(place: str) -> None:
    aliases = Aliases(place)
    aliases.move("champion", 1)
    seen: list[int | None] = []

    def expected(before: int | None) -> None:
        seen.append(before)
        if len(seen) == 1:
            Aliases(place).move("champion", 2)

    aliases.move("champion", 3, expected=expected)
    assert seen == [1, 2]
    assert [each.version for each in aliases.history()] == [1, 2, 3]


def test_a_damaged_change_is_an_error_with_a_cure(tmp_path: Path) -> None:
    Aliases(tmp_path).move("champion", 1)
    (tmp_path / ".aliases" / "000002.json").write_text('{"kind": "model-alias", "format": 1}')
    with pytest.raises(CorruptError, match=r"000002.json is damaged.*: remove it to return"):
        Aliases(tmp_path).read()


@given(st.text(max_size=70))
def test_no_alias_looks_like_a_version_or_leaves_its_url(alias: str) -> None:
    try:
        check_alias(alias)
    except SpecError:
        return
    assert not alias.isdigit()
    assert not {"/", ":", "@", " "} & set(alias)
    assert split_alias(f"cats@{alias}") == ("cats", alias)


def test_references_with_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mail@home").mkdir()
    for text, expected in {
        "cats@champion": ("cats", "champion"),
        "./models/cats@champion": ("./models/cats", "champion"),
        "s3://bucket/cats@champion": ("s3://bucket/cats", "champion"),
        "cats@latest": ("cats", "latest"),
        "cats": ("cats", None),
        "cats@7": ("cats@7", None),
        "@champion": ("@champion", None),
        "s3://user@bucket": ("s3://user@bucket", None),
        "s3://user@bucket/cats": ("s3://user@bucket/cats", None),
        "mail@home": ("mail@home", None),
    }.items():
        assert split_alias(text) == expected


def test_unknown_aliases_are_told_with_those_that_exist() -> None:
    assert version_named("champion", {"champion": 7}, "cats") == 7
    with pytest.raises(NotFoundError, match="cats has no alias best: its aliases are: champion"):
        version_named("best", {"champion": 7}, "cats")
    with pytest.raises(NotFoundError, match="timonel models alias cats best VERSION"):
        version_named("best", {}, "cats")
    with pytest.raises(SpecError, match="it always names the newest version"):
        check_alias("latest")
