"""File systems of URIs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.faulty import FaultyServer
from timonel.errors import InputError, MissingExtraError, SpecError
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.filesystems import forget_connections, open_filesystem
from timonel.storage.object_store import ObjectStore


def test_file_systems(tmp_path: Path) -> None:
    fs, path = open_filesystem("memory://bucket/x")
    assert (fs.protocol, path) == ("memory", "/bucket/x")
    fs, path = open_filesystem(str(tmp_path))
    assert path == str(tmp_path)
    with pytest.raises(SpecError, match="expected a path, s3://, gs:// or https://, got nope://x"):
        open_filesystem("nope://x")


@pytest.mark.parametrize(
    "text",
    ["zip://a::/etc/archive.zip", "simplecache::http://127.0.0.1/a", "ftp://127.0.0.1/a"],
)
def test_other_protocols_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected a path, s3://, gs:// or https://"):
        open_filesystem(text)


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("gs://b/x", MissingExtraError, r"pip install 'timonel\[gcs\]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, uri: str, error: type[Exception], message: str
) -> None:
    for package in ("gcsfs", "gcsfs.core", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    # A test before this one may have used it.
    registry = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(registry, uri.partition(":")[0], raising=False)
    with pytest.raises(error, match=message):
        open_filesystem(uri)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A server in place of Google's, for a user without credentials."""
    import fsspec.config
    import google.auth
    from gcsfs.credentials import GoogleCredentials
    from google.auth.exceptions import DefaultCredentialsError

    asked = []

    def no_credentials(*_: object, **__: object) -> None:
        asked.append(1)
        raise DefaultCredentialsError("Your default credentials were not found.")

    def ask_for_metadata(_: object) -> None:
        pytest.fail("asked for the credentials of a machine at Google again")

    server = FaultyServer("http://127.0.0.1:9")
    monkeypatch.setattr(google.auth, "default", no_credentials)
    monkeypatch.setattr(GoogleCredentials, "_connect_cloud", ask_for_metadata)
    for scheme in ("gs", "gcs"):
        monkeypatch.setitem(fsspec.config.conf, scheme, {"endpoint_url": server.url})
    forget_connections()
    yield server
    assert len(asked) == 1, "a metadata server that does not exist takes seconds"
    forget_connections()
    server.close()


def test_missing_credentials_of_google_are_one_line_after_one_request(
    google: FaultyServer, caplog: pytest.LogCaptureFixture
) -> None:
    google.fault = lambda *_: "denied"
    store = ObjectStore("gs://bucket/x")
    for work in (lambda: store.read("a"), store.find, lambda: store.write("a", b"1")):
        google.seen.clear()
        with pytest.raises(
            InputError,
            match=r"cannot \w+ gs://bucket/x.*: access denied: Anonymous caller .*: "
            "run 'gcloud auth application-default login', or name a key file in "
            "GOOGLE_APPLICATION_CREDENTIALS",
        ):
            work()
        assert len(google.seen) == 1
    assert caplog.text == ""


def test_google_away_is_one_line_without_further_requests(
    google: FaultyServer, caplog: pytest.LogCaptureFixture
) -> None:
    google.fault = lambda *_: "away"
    with pytest.raises(UnavailableError, match="gs://bucket/x/a: the server does not answer"):
        ObjectStore("gs://bucket/x", patience_s=0.0).read("a")
    assert len(google.seen) <= 2, "aiohttp repeats a request once if a connection is closed"
    assert caplog.text == ""


def test_a_key_file_that_cannot_be_used_is_named(
    google: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(InputError, match=r"cannot use the Google credentials in .*key\.json"):
        ObjectStore("gs://bucket/x").read("a")
    assert google.seen == []
