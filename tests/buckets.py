"""Servers of S3 buckets: moto in this process, or MinIO, a real one that `kubelab build` makes."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from tests.waiting import until

# Read before the tests' environment is cleaned.
MINIO = os.environ.get("TIMONEL_TEST_MINIO")
"""The program of MinIO, if tests shall use it."""
without_minio = pytest.mark.skipif(MINIO is not None, reason="MinIO does not take these requests")
_USER, _PASSWORD = "test", "testtest"  # MinIO wants eight characters


def client_env(url: str) -> dict[str, str]:
    """Return the environment of a server's clients."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": _USER,
        "AWS_SECRET_ACCESS_KEY": _PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


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


@contextmanager
def running_moto() -> Iterator[str]:
    """Run moto, which checks no signatures, in this process; yield its URL."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def running_minio(
    program: str, host: str = "127.0.0.1"
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run MinIO without buckets at an address of this machine; yield its URL and process."""
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    env = {
        **os.environ,
        "MINIO_ROOT_USER": _USER,
        "MINIO_ROOT_PASSWORD": _PASSWORD,
        "MINIO_BROWSER": "off",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "server", "--quiet", "--address", address, folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as process:
            try:
                until(lambda: _is_ready(f"http://{address}/minio/health/ready"))
                yield f"http://{address}", process
            finally:
                process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False
