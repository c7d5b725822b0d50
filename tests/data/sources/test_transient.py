from __future__ import annotations

import errno

import pytest

from timonel.data.sources.transient import retried, unreadable


def failing(*errors: OSError) -> tuple[list[OSError], list[float]]:
    return list(errors), []


def test_transient_errors_are_retried_with_longer_waits() -> None:
    errors, slept = failing(OSError(errno.EIO, "bad"), TimeoutError(), OSError(errno.ESTALE, "old"))

    def call() -> str:
        if errors:
            raise errors.pop()
        return "content"

    assert retried(call, slept.append) == "content"
    assert slept == [0.1, 1.0, 5.0]


def test_the_last_error_is_raised() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error") as caught:
        retried(call, lambda _: None)
    assert len(calls) == 4
    assert str(unreadable("a.jpg", caught.value)) == (
        "cannot read a.jpg after 4 attempts: Input/output error: check the disk or the network, "
        "then run the same command again to continue"
    )


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, IsADirectoryError])
def test_errors_of_the_file_are_not_retried(error: type[OSError]) -> None:
    slept: list[float] = []

    def call() -> None:
        raise error

    with pytest.raises(error):
        retried(call, slept.append)
    assert slept == []
