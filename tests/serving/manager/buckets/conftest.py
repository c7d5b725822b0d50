"""An S3 endpoint behind a proxy that can be made to fail, and a server's loader over it."""

from __future__ import annotations

import uuid

import pytest

from tests.buckets import set_credentials
from tests.serving.manager.test_manager import Rig as FolderRig
from tests.storage.faulty import FaultyServer
from timonel.serving.manager.buckets import source
from timonel.serving.settings.models import LoadSettings
from timonel.storage import filesystems


class Place:
    """A model's base path in a bucket, to upload to past the proxy."""

    def __init__(self, uri: str, fs, proxy: FaultyServer | None) -> None:
        self.uri = uri
        self.proxy = proxy
        self.fs = fs
        self.root = uri.partition("://")[2]

    def put(self, version, name, content: bytes) -> None:
        self.fs.pipe_file(f"{self.root}/{version}/{name}", content)

    def version(self, number, factor=None, **more: bytes) -> None:
        for name, content in more.items():
            self.put(number, name, content)
        self.put(number, "saved_model.pb", str(number if factor is None else factor).encode())

    def drop(self, number) -> None:
        self.fs.rm(f"{self.root}/{number}", recursive=True)


@pytest.fixture
def impatient(monkeypatch):
    """Wait for buckets for seconds instead of a minute."""
    monkeypatch.setattr(filesystems, "_READ_S", 2)
    monkeypatch.setattr(source, "_PATIENCE_S", 0.5)


@pytest.fixture
def s3(s3_server, monkeypatch):
    """A place in S3, seen through the proxy."""
    import s3fs

    proxy = FaultyServer(s3_server)
    set_credentials(monkeypatch, proxy.url)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    direct = s3fs.S3FileSystem(endpoint_url=s3_server, use_listings_cache=False)
    name = f"b{uuid.uuid4().hex}"
    direct.mkdir(name)
    yield Place(f"s3://{name}/models/m", direct, proxy)
    s3fs.S3FileSystem.clear_instance_cache()
    proxy.close()


@pytest.fixture
def memory():
    """A place in memory."""
    import fsspec

    fs = fsspec.filesystem("memory", use_listings_cache=False)
    return Place(f"memory://b{uuid.uuid4().hex}/m", fs, None)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


class Rig(FolderRig):
    """A loader over a place in a bucket, with the fake runtime."""

    def __init__(self, place, cache, policy=None, **settings):
        options = {"poll_s": 0.1, "settle_s": 0.05, "max_retries": 2, "retry_s": 0.05}
        load = LoadSettings(model_cache=str(cache), **(options | settings))
        super().__init__(place.uri, settings=load, policy=policy)

    def until(self, condition, timeout_s=60.0):
        super().until(condition, timeout_s)

    def serves(self, number):
        self.until(lambda: self.serving() == [number])
