"""Options of REST backends."""

from __future__ import annotations

from timonel.serving.settings import RestSettings
from timonel.serving.settings.dialect import TIMONEL


def rest_options(dialect=TIMONEL, **settings):
    """Keyword arguments of a `RestBackend`."""
    return {"settings": RestSettings(**settings), "dialect": dialect}
