from __future__ import annotations

import pytest

from tests.cli.conftest import Timonel
from timonel.cli.traffic import percentages, rules
from timonel.endpoints.spec import Traffic
from timonel.errors import SpecError


def test_rules_are_fields_of_traffic() -> None:
    found = rules(["stable=1", "canary=2"], ["x-team=a=b:c:2"], "version", None, "3=50")
    traffic = Traffic(percent=percentages(["1=90", "2=10"]), **found)
    assert traffic.percent == {1: 90, 2: 10}
    assert traffic.labels == {"stable": 1, "canary": 2}
    (match,) = traffic.matches
    assert (match.header, match.value, match.version) == ("x-team", "a=b:c", 2)
    assert traffic.sticky is not None
    assert traffic.sticky.cookie == "version"
    assert traffic.shadow is not None
    assert (traffic.shadow.version, traffic.shadow.percent) == (3, 50)
    assert rules([], [], None, None, None) == {}
    assert rules([], [], None, None, "3")["shadow"]["percent"] == 100


@pytest.mark.parametrize("words", [["1"], ["1=x"], ["1=50", "1=50"], ["=5"], ["1=-5"]])
def test_wrong_percentages(words: list[str]) -> None:
    with pytest.raises(SpecError, match="expected VERSION=PERCENT"):
        percentages(words)


@pytest.mark.parametrize(
    ("labels", "matches", "shadow", "expected"),
    [
        (["canary"], [], None, "LABEL=VERSION"),
        (["canary=b"], [], None, "LABEL=VERSION"),
        ([], ["x-team:4"], None, "HEADER=VALUE:VERSION"),
        ([], ["x-team=vision"], None, "HEADER=VALUE:VERSION"),
        ([], [], "canary", "VERSION or VERSION=PERCENT"),
        ([], [], "4=half", "VERSION or VERSION=PERCENT"),
    ],
)
def test_wrong_rules(
    labels: list[str], matches: list[str], shadow: str | None, expected: str
) -> None:
    with pytest.raises(SpecError, match=f"expected {expected}"):
        rules(labels, matches, None, None, shadow)


def test_something_must_change(timonel: Timonel) -> None:
    outcome = timonel("endpoints", "split", "digits")
    assert (outcome.exit_code, "nothing to change" in outcome.error_line) == (2, True)
