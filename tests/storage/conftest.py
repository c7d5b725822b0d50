"""What storage tests share: programs to kill and a bucket."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.buckets import client_env

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


def set_credentials(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """Set the environment for clients of an S3 endpoint."""
    for name, value in client_env(server).items():
        monkeypatch.setenv(name, value)


def open_bucket(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield the URI of an empty place in a bucket."""
    name = f"b{uuid.uuid4().hex}"
    if kind == "memory":
        yield f"memory://{name}"
        return
    import s3fs

    set_credentials(monkeypatch, request.getfixturevalue("s3_server"))
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/place"
    s3fs.S3FileSystem.clear_instance_cache()
