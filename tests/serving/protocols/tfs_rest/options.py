"""The REST port without a socket."""

from __future__ import annotations

from timonel.serving.asgi import Router
from timonel.serving.inference.flow import Flow
from timonel.serving.protocols.monitoring import monitoring_routes
from timonel.serving.protocols.tfs_rest.api import RestApi
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.settings.server import RestSettings
from timonel.serving.telemetry.monitor import Monitor


def rest_options(**settings):
    """Keyword arguments of a `RestApi`."""
    return {"settings": RestSettings(**settings)}


def rest_api(catalogue, pool, monitor=None, **options):
    return RestApi(Flow(catalogue, pool, monitor or Monitor()), **options)


def rest_router(catalogue, pool, monitor=None, **options):
    """TensorFlow Serving's API and the probes."""
    api = rest_api(catalogue, pool, monitor, **options)
    return Router([*api.routes(), *monitoring_routes(catalogue, lambda: False)])


def inference_router(catalogue, pool, monitor=None, is_draining=lambda: False, **settings):
    """The Open Inference Protocol."""
    flow = Flow(catalogue, pool, monitor or Monitor())
    api = InferenceApi(flow, RestSettings(**settings), is_draining)
    return Router(api.routes())
