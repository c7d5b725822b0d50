from __future__ import annotations

import os
from pathlib import Path

import pytest

from timonel.processes.zygote import import_environment
from timonel.processes.zygote_key import (
    is_current,
    loaded_files,
    write_stamps,
    zygote_key,
)


def test_only_what_an_import_may_see_counts() -> None:
    key = zygote_key(("colorsys",), {"TF_ENABLE_ONEDNN_OPTS": "0"})
    same = {"TF_ENABLE_ONEDNN_OPTS": "0", "TIMONEL_DATA": "/data", "TF_CONFIG": "{}"}
    assert zygote_key(("colorsys",), same) == key
    assert zygote_key(("colorsys",), {"TF_ENABLE_ONEDNN_OPTS": "1"}) != key
    assert zygote_key(("colorsys", "json"), same) != key
    assert import_environment(same) == {"TF_ENABLE_ONEDNN_OPTS": "0"}


def test_what_is_inherited_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    key = zygote_key(("colorsys",), {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {99})
    assert zygote_key(("colorsys",), {}) != key


def test_a_changed_or_removed_source_is_seen(tmp_path: Path) -> None:
    record = tmp_path / "key.files"
    assert is_current(record)
    source = tmp_path / "module.py"
    source.write_text("A = 1")
    stat = source.stat()
    write_stamps(record, {str(source): [stat.st_mtime_ns, stat.st_size]})
    assert is_current(record)
    source.write_text("A = 22")
    assert not is_current(record)
    source.unlink()
    assert not is_current(record)


def test_a_file_changed_while_importing_fits_nothing() -> None:
    assert all(stamp is None for stamp in loaded_files(before_ns=0).values())
    assert any(stamp is not None for stamp in loaded_files(before_ns=1 << 62).values())
