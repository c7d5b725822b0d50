from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.containers.registry_server import RegistryServer
from timonel.containers import transport
from timonel.containers.credentials import RegistryCredentials
from timonel.containers.image import MANIFEST_TYPE
from timonel.containers.layers import Layer, LayerFile, write_layer
from timonel.containers.reference import Reference
from timonel.containers.registry import Registry
from timonel.errors import CorruptError, InputError, NotFoundError
from timonel.storage.digests import digest_bytes


def opened(server: RegistryServer, name: str = "team/app:v1", user: str = "") -> Registry:
    known = RegistryCredentials(*user.split(":")) if user else None
    return Registry(Reference.parse(f"{server.host}/{name}"), credentials=known)


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return write_layer([LayerFile("a", b"1" * 3_000_000)], tmp_path / "layer")


def test_a_layer_is_uploaded_once(server: RegistryServer, layer: Layer) -> None:
    registry = opened(server)
    assert registry.push_layer(layer)
    assert not registry.push_layer(layer)
    assert layer.path is not None
    assert server.blobs["team/app", layer.digest] == layer.path.read_bytes()
    assert server.count("PUT") == 1


def test_a_blob_of_another_repository_is_mounted(server: RegistryServer, layer: Layer) -> None:
    assert not opened(server).mount_blob(layer.digest, "base")
    opened(server, "base").push_layer(layer)
    assert opened(server).mount_blob(layer.digest, "base")
    assert not opened(server).push_layer(layer)
    assert server.count("PUT") == 1
    assert ("team/app", layer.digest) in server.blobs


def test_manifests_by_tag_and_digest(server: RegistryServer) -> None:
    registry = opened(server)
    manifest = {"schemaVersion": 2, "manifests": []}
    content = json.dumps(manifest).encode()
    registry.push_manifest(content, MANIFEST_TYPE, "v1")
    assert registry.manifest() == (
        {**manifest, "mediaType": MANIFEST_TYPE},
        digest_bytes(content),
    )
    assert registry.manifest(digest_bytes(content))[1] == digest_bytes(content)
    with pytest.raises(NotFoundError, match="no image"):
        registry.manifest("v2")


def test_tokens(server: RegistryServer, layer: Layer) -> None:
    server.user = "ada:pw"
    assert opened(server, user="ada:pw").push_layer(layer)
    for user, reason in (("", "no credentials"), ("ada:no", "the credentials are refused")):
        with pytest.raises(InputError, match=f"not allowed to .*: {reason}.*docker login"):
            opened(server, user=user).push_layer(layer)


def test_a_busy_registry_is_asked_again(server: RegistryServer, layer: Layer) -> None:
    registry = opened(server)
    server.faults = [503, 429]
    assert registry.push_layer(layer)
    server.blobs.clear()
    assert not registry.has_blob(layer.digest)
    # The upload itself fails once, and its content is sent again from its start.
    put = registry._call

    def fail_once(method: str, *args: object, **options: object) -> object:
        if method == "PUT" and server.count("PUT") == 1:
            server.faults = [500]
        return put(method, *args, **options)  # type: ignore[arg-type]

    registry._call = fail_once  # type: ignore[assignment, method-assign]
    assert registry.push_layer(layer)
    assert layer.path is not None
    assert server.blobs["team/app", layer.digest] == layer.path.read_bytes()


def test_a_registry_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    registry = Registry(Reference.parse(f"127.0.0.1:{port}/app"))
    registry._pool.connection_pool_kw["retries"] = 0
    with pytest.raises(InputError, match=f"the registry 127.0.0.1:{port} does not answer"):
        registry.manifest()


def test_a_registry_without_tls_is_named(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.containers.transport._RETRIES", False)
    reference = Reference.parse(f"{server.host}/team/app:v1")
    expected = f"{server.host} speaks HTTP, not HTTPS: add --plain-http"
    with pytest.raises(InputError, match=expected):
        Registry(reference, plain_http=False).manifest()


def test_changed_bytes_are_refused(server: RegistryServer, layer: Layer, tmp_path: Path) -> None:
    registry = opened(server)
    server.blobs["team/app", layer.digest] = b"other"
    with pytest.raises(CorruptError, match="other bytes"):
        registry.blob(layer.digest)
    with pytest.raises(CorruptError, match="other bytes"):
        registry.fetch(layer.digest, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_a_reason_of_the_registry_is_shown(server: RegistryServer) -> None:
    manifest = json.dumps({"layers": [{"digest": "sha256:1"}]}).encode()
    with pytest.raises(InputError, match="blob unknown"):
        opened(server).push_manifest(manifest, MANIFEST_TYPE, "v1")


@pytest.mark.parametrize(
    "content",
    [
        b"<html>login</html>",
        b"[]",
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"manifests": [{}]}',
        b'{"config": {"digest": "sha256:1"}, "layers": [1]}',
    ],
)
def test_what_is_no_manifest_is_refused(server: RegistryServer, content: bytes) -> None:
    server.manifests["team/app", "v1"] = ("text/html", content)
    with pytest.raises(CorruptError, match=r"team/app:v1 is no image .*check its name"):
        opened(server).manifest()


def test_a_download_that_breaks_off(server: RegistryServer, layer: Layer, tmp_path: Path) -> None:
    assert layer.path is not None
    server.blobs["team/app", layer.digest] = layer.path.read_bytes()
    server.missing_bytes = 10
    with pytest.raises(InputError, match=r"the download of .* broke off: .*: try again"):
        opened(server).fetch(layer.digest, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://127.0.0.1:5000/upload", True),
        ("http://127.0.0.1:50001/upload", False),
        ("http://127.0.0.1.example:5000/upload", False),
        ("https://127.0.0.1:5000/upload", False),
    ],
)
def test_only_the_registry_gets_the_credentials(url: str, is_own: bool) -> None:
    registry = Registry(Reference.parse("127.0.0.1:5000/app"))
    registry._authorization = "Basic secret"
    sent: list[Any] = []

    class Pool:
        def request(self, *_: object, headers: dict[str, str], **__: object) -> Any:
            sent.append(headers.get("Authorization"))
            return type("Answer", (), {"status": 200})

    registry._pool = Pool()  # type: ignore[assignment]
    registry._open("PUT", url)
    assert sent == ["Basic secret" if is_own else None]


def test_a_registry_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=f"the registry {host} does not answer"):
            Registry(Reference.parse(f"{host}/app")).manifest()
    assert [each.getMessage() for each in caplog.records if each.name == transport.__name__] == [
        f"the registry {host} does not answer; trying again"
    ] * 2


def test_a_registry_has_more_time_to_store_an_upload() -> None:
    assert transport.timeout_for("GET").read_timeout == 30
    assert transport.timeout_for("PUT").read_timeout == 120


@pytest.mark.parametrize(("asked", "waited"), [("86400", 60), ("7", 7)])
def test_the_wait_that_a_registry_asks_for_is_limited_and_told(
    server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: str,
    waited: int,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    server.faults, server.retry_after = [429], asked
    server.add_image("app", "latest")
    opened(server, "app").manifest()
    assert max(slept) == waited
    message = f"the registry {server.host} answers 429; trying again in {waited} s"
    assert message in [each.getMessage() for each in caplog.records]
    assert caplog.records[-1].levelno >= logging.WARNING


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_documents_without_an_end_are_not_read_to_the_end(encoding: str | None) -> None:
    block = b" " * (1 << 20)
    if encoding is not None:
        block = gzip.compress(block * 8)
    sent: list[int] = []

    def flood(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            header = f"Content-Encoding: {encoding}\r\n" if encoding else ""
            connection.sendall(f"HTTP/1.1 200 OK\r\n{header}\r\n".encode())
            try:
                while len(sent) < 200:
                    connection.sendall(block)
                    sent.append(1)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=flood, args=(listening,), daemon=True)
        thread.start()
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match=f"{host} sends more than 4 MiB where a document"):
            Registry(Reference.parse(f"{host}/app")).manifest()
        thread.join(60)
    assert encoding or len(sent) < 100


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"config":' * 100_000])
def test_deeply_nested_documents_are_refused(server: RegistryServer, content: bytes) -> None:
    server.manifests["team/app", "v1"] = ("text/html", content)
    with pytest.raises(CorruptError, match=r"team/app:v1 is no image"):
        opened(server).manifest()
