"""Create the web page from a server's settings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from timonel._version import __version__
from timonel.serving.asgi import App
from timonel.serving.console.openapi.server import Facts
from timonel.serving.console.page.app import PageApp
from timonel.serving.console.page.description import Description
from timonel.serving.console.page.sampler import Sampler
from timonel.serving.inference import DataPlane
from timonel.serving.settings import ServerSettings
from timonel.serving.settings.dialect import DIALECTS
from timonel.serving.telemetry.monitor import Monitor


def with_page(
    app: App,
    settings: ServerSettings,
    plane: DataPlane,
    monitor: Monitor,
    pool: Executor,
    *,
    is_draining: Callable[[], bool],
) -> App:
    """Add the page and ``/openapi.json`` to a REST application, if enabled.

    Args:
        app: Application for all other requests.
        settings: The server's settings.
        plane: Data plane with the models.
        monitor: Source of the plots' data.
        pool: Executor for large responses.
        is_draining: Whether the server has been asked to stop.
    """
    lists = DIALECTS[settings.dialect].lists_models
    if not (lists or settings.rest.page):
        return app
    facts = Facts(
        release=__version__,
        is_closed=settings.access.is_closed,
        lists=lists,
        metrics_path=settings.monitoring.metrics_path,
        open_inference=True,
    )
    sampler = Sampler(monitor) if settings.rest.page else None
    return PageApp(app, Description(plane, facts), pool, sampler, is_draining)
