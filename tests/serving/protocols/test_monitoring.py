from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest

from timonel.serving.asgi import Request
from timonel.serving.auth.asgi import ANONYMOUS
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.protocols.monitoring import monitoring_routes
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.status import Code, HungError, StatusError


class Stuck(LoadedModel):
    signatures = MappingProxyType({})
    outage = None

    def run(self, signature, inputs, outputs=None):
        raise NotImplementedError

    def close(self):
        pass


@pytest.fixture
def model():
    return Stuck()


@pytest.fixture
def probe(model):
    catalogue = Catalogue()
    catalogue.configure({"m": {}})
    catalogue.publish("m", {1: Servable("m", 1, scheduled(model))}, ())
    routes = monitoring_routes(catalogue, lambda: False)

    def ask(path, **scope):
        (route,) = [each for each in routes if each.pattern.fullmatch(path)]
        response = asyncio.run(route.answer(Request(scope, None, path, None)))
        return response.status, response.body

    return ask


def test_a_server_is_alive_unless_a_version_hangs(model, probe):
    assert probe("/livez") == probe("/readyz") == (200, b"ok")
    model.outage = StatusError(Code.UNAVAILABLE, "its process is restarting")
    assert probe("/livez") == (200, b"ok")
    assert probe("/readyz") == (503, b"not loaded: m")
    model.outage = HungError("hangs")
    assert probe("/livez") == (503, b"hung: m")
    assert probe("/readyz") == (503, b"not loaded: m")
    assert probe("/livez", **{ANONYMOUS: True}) == (503, b"hung")
