from __future__ import annotations

import time
from pathlib import Path

import pytest

from timonel.endpoints.control.keys import ApiKeys
from timonel.endpoints.gateway.access import access_filters, configured_keys
from timonel.endpoints.spec import Access
from timonel.errors import InputError, SpecError

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.write_text(f"shop={OLD}\n")
    return made


def test_a_changed_file_applies_once_it_is_complete(path: Path) -> None:
    keys = ApiKeys(None)
    keys.refresh(path, time.time())
    assert keys.current == {"shop": OLD}
    path.write_text(f"shop={NEW}\n")
    written = path.stat().st_mtime
    keys.refresh(path, written + 0.1)
    assert keys.current == {"shop": OLD}
    keys.refresh(path, written + 1)
    assert keys.current == {"shop": NEW}


@pytest.mark.parametrize("text", ["", "shop", f"shop={OLD}\nshop={NEW}"])
def test_a_damaged_file_keeps_the_keys(path: Path, text: str) -> None:
    keys = ApiKeys(None)
    keys.refresh(path, time.time())
    path.write_text(text)
    later = path.stat().st_mtime + 1
    with pytest.raises(SpecError, match="its keys stay as they were"):
        keys.refresh(path, later)
    path.unlink()
    with pytest.raises(InputError, match="its keys stay as they were"):
        keys.refresh(path, later)
    assert keys.current == {"shop": OLD}


def test_without_keys_nothing_is_accepted(path: Path) -> None:
    path.write_text("damaged")
    keys = ApiKeys(None)
    with pytest.raises(SpecError, match="no request is accepted"):
        keys.refresh(path, time.time())
    assert keys.current is None


def test_keys_are_found_in_the_configuration() -> None:
    filters = access_filters(Access(api_keys="/keys"), {"shop": OLD})
    manager = {"typed_config": {"http_filters": [*filters, {"name": "router"}]}}
    listener = {"name": "digits", "filter_chains": [{"filters": [manager]}]}
    listeners = {"resources": [{"name": "hold"}, listener]}
    assert configured_keys(listeners, "digits") == {"shop": OLD}
    assert configured_keys(listeners, "other") is None
    assert configured_keys({}, "digits") is None
