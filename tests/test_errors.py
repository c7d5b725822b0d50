from __future__ import annotations

import inspect
import pickle
import re

import pytest

from timonel import errors
from timonel.errors import MissingExtraError, TimonelError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, TimonelError)
]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: list[tuple[int, str, int]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│ ├└─]*)(\w+) +exit (\d+)", line)
        if match:
            drawn.append((len(match[1]) // 4, match[2], int(match[3])))
    parents = {0: "Exception"}
    tree = {}
    for depth, name, code in drawn:
        parents[depth + 1] = name
        tree[name] = (parents[depth], code)
    assert tree == {
        found.__name__: (found.__mro__[1].__name__, found.exit_code) for found in CLASSES
    }


@pytest.mark.parametrize("found", CLASSES)
def test_an_error_survives_the_way_to_another_process(found: type[TimonelError]) -> None:
    error = (
        MissingExtraError("mirroring", "mlflow")
        if found is MissingExtraError
        else found("expected x, got y", hint="do z")
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is found
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_message_says_what_to_do_after_it() -> None:
    assert str(TimonelError("expected x, got y", hint="do z")) == "expected x, got y: do z"
    assert str(TimonelError("expected x, got y")) == "expected x, got y"


def test_a_missing_extra_names_the_command() -> None:
    error = MissingExtraError("s3://", "s3")
    assert str(error) == (
        "s3:// needs the extra 's3', which is not installed: pip install 'timonel[s3]'"
    )
    assert error.extra == "s3"
