"""Address of the pages. Its port outlives the control plane, so that open pages go on."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from timonel.errors import InputError, ServingError, TimonelError
from timonel.serving.ports import bind
from timonel.storage import read_document, write_document

_HOST = "127.0.0.1"

logger = logging.getLogger(__name__)


def bind_pages(endpoints: Path) -> socket.socket:
    """Bind the port of the last control plane, or a free one if that is taken; record it."""
    before = _port(endpoints)
    try:
        bound = bind(_HOST, before or 0, "pages")
    except ServingError:
        bound = bind(_HOST, 0, "pages")
    port = bound.getsockname()[1]
    if port != before:
        try:
            write_document(_path(endpoints), "endpoints-page", {"port": port})
        except InputError as error:
            # With a full disk, say, endpoints go on without an address of the pages.
            logger.error("cannot record the port of the pages: %s", error)  # noqa: TRY400
    return bound


def pages_url(endpoints: Path) -> str | None:
    """Return the address of the pages; None before the first control plane."""
    port = _port(endpoints)
    return None if port is None else f"http://{_HOST}:{port}"


def _port(endpoints: Path) -> int | None:
    try:
        port = read_document(_path(endpoints), "endpoints-page").get("port")
    except TimonelError:
        return None  # recorded anew by the next control plane
    return port if isinstance(port, int) and 0 < port < 65536 else None


def _path(endpoints: Path) -> Path:
    return endpoints / "page.json"
