import pytest

from tests.waiting import until


def test_it_waits_until_a_condition_holds():
    seen = iter([0, [], "there"])
    until(lambda: next(seen), poll_s=0)
    assert next(seen, None) is None


def test_it_tells_what_was_seen_of_what_never_held():
    with pytest.raises(AssertionError, match="two of three"):
        until(lambda: False, 0, seen=lambda: "two of three")
