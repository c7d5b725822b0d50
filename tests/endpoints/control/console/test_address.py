"""Port of the pages."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import pytest

from timonel.endpoints.control.console.address import bind_pages, pages_url


def port_of(folder: Path) -> int:
    with contextlib.closing(bind_pages(folder)) as bound:
        port: int = bound.getsockname()[1]
    return port


def test_the_port_outlives_the_control_plane(tmp_path: Path) -> None:
    assert pages_url(tmp_path) is None
    port = port_of(tmp_path)
    assert pages_url(tmp_path) == f"http://127.0.0.1:{port}"
    assert port_of(tmp_path) == port


def test_a_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    port = port_of(tmp_path)
    with socket.create_server(("127.0.0.1", port)):
        other = port_of(tmp_path)
    assert other != port
    assert pages_url(tmp_path) == f"http://127.0.0.1:{other}"


@pytest.mark.parametrize(
    "content", ["{", '{"kind": "endpoints-page", "format": 1, "port": 99999999}']
)
def test_a_damaged_document_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "page.json").write_text(content)
    assert pages_url(tmp_path) is None
    port = port_of(tmp_path)
    assert pages_url(tmp_path) == f"http://127.0.0.1:{port}"


def test_without_a_disk_pages_are_served_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "page.json").mkdir()
    with caplog.at_level(logging.ERROR):
        assert port_of(tmp_path) > 0
    assert len(caplog.records) == 1
