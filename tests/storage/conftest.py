"""What storage tests share: programs to kill and a bucket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.buckets import open_bucket

Kill = Callable[..., None]


@pytest.fixture
def killed() -> Kill:
    """Run a program up to where it prints ``now``, and kill it there with SIGKILL."""

    def run(code: str, *arguments: object) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "now\n"
            process.kill()

    return run


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of an empty place in a bucket, in memory and on a real endpoint."""
    yield from open_bucket(request.param, request, monkeypatch)
