"""The view of API keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from timonel.cli.render.output import clock
from timonel.cli.render.view import MOMENT, Field, View

if TYPE_CHECKING:
    from timonel.serving.auth.keys import KeyRecord


def _expiry(key: KeyRecord) -> str:
    return clock(key.expires) if key.is_valid(time.time()) else "expired"


KEY = View(
    Field("id", column="ID"),
    Field("name", column="NAME"),
    Field("right", get=lambda key: key.right.value, column="RIGHT"),
    Field("created_at", MOMENT, lambda key: key.created, column="CREATED"),
    Field("expires_at", MOMENT, lambda key: key.expires, column="EXPIRES", shown=_expiry),
    wide="NAME",
)
