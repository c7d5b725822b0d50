from __future__ import annotations

import time
from pathlib import Path

import pytest

from timonel.endpoints.access_files import read_api_keys
from timonel.endpoints.control.watched_files import AccessFiles, WatchedFiles
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access, Jwt, Tls
from timonel.errors import SpecError

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.write_text(f"shop={OLD}\n")
    return made


def api_keys(current: dict[str, str] | None = None) -> WatchedFiles[dict[str, str]]:
    return WatchedFiles("API keys", read_api_keys, current)


def test_a_changed_file_applies_once_it_is_complete(path: Path) -> None:
    keys = api_keys()
    keys.refresh((path,), time.time())
    assert keys.current == {"shop": OLD}
    path.write_text(f"shop={NEW}\n")
    written = path.stat().st_mtime
    keys.refresh((path,), written + 0.1)
    assert keys.current == {"shop": OLD}
    keys.refresh((path,), written + 1)
    assert keys.current == {"shop": NEW}


@pytest.mark.parametrize("text", ["shop", f"shop={OLD}\nshop={NEW}"])
def test_a_damaged_file_keeps_the_content(path: Path, text: str) -> None:
    keys = api_keys()
    keys.refresh((path,), time.time())
    path.write_text(text)
    later = path.stat().st_mtime + 1
    for _ in range(2):
        with pytest.raises(SpecError, match=r"^API keys: .*; they stay as they were"):
            keys.refresh((path,), later)
    path.unlink()
    with pytest.raises(SpecError, match="they stay as they were"):
        keys.refresh((path,), later)
    assert keys.current == {"shop": OLD}


def test_an_emptied_file_leaves_no_key(path: Path) -> None:
    keys = api_keys()
    keys.refresh((path,), time.time())
    path.write_text("# none\n")
    keys.refresh((path,), path.stat().st_mtime + 1)
    assert keys.current == {}


def test_without_content_nothing_is_accepted(path: Path) -> None:
    path.write_text("damaged")
    keys = api_keys()
    with pytest.raises(SpecError, match="no request is accepted"):
        keys.refresh((path,), time.time())
    assert keys.current is None


def test_another_file_applies_at_once(path: Path, tmp_path: Path) -> None:
    keys = api_keys()
    keys.refresh((path,), time.time())
    other = tmp_path / "other"
    other.write_text(f"shop={NEW}\n")
    keys.refresh((other,), other.stat().st_mtime + 1)
    assert keys.current == {"shop": NEW}


def test_what_an_endpoint_needs() -> None:
    files = AccessFiles(Secrets(api_keys={"shop": OLD}, jwks="{}"))
    access = Access(
        api_keys="/keys", tls=Tls(cert="/c", key="/k"), jwt=Jwt(issuer="i", jwks="/jwks")
    )
    needed = [(each.what, each.current, paths) for each, paths in files.needed(access)]
    assert needed == [
        ("API keys", {"shop": OLD}, (Path("/keys"),)),
        ("certificate", None, (Path("/c"), Path("/k"))),
        ("keys of tokens", "{}", (Path("/jwks"),)),
    ]
    assert list(files.needed(Access())) == []
