"""Endpoints are exposed when they change, and after failures."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from timonel.endpoints.control.exposures import Exposures
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import ServiceEngine
from timonel.errors import EngineError


class RecordingEngine:
    """Stands for an engine: records what is exposed; refuses while it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.is_refusing = False

    def expose(self, name: str, service: str, port: int, *, has_tls: bool) -> None:
        self.calls.append((port, has_tls))
        if self.is_refusing:
            raise EngineError("no")

    def conceal(self, name: str) -> None:
        assert name == "digits"


@pytest.fixture
def engine() -> RecordingEngine:
    return RecordingEngine()


def exposures_of(engine: RecordingEngine) -> Exposures:
    return Exposures(cast("ServiceEngine", engine))


def spec(**fields: Any) -> EndpointSpec:
    base = {"name": "digits", "model": "digits", "traffic": {"percent": {1: 100}}, "port": 8501}
    return EndpointSpec.model_validate({**base, **fields})


def test_only_changes_are_exposed(engine: RecordingEngine) -> None:
    exposures = exposures_of(engine)
    tls = {"tls": {"cert": "/a.pem", "key": "/b.pem"}}
    for each in (spec(), spec(), spec(port=9000), spec(port=9000, access=tls)):
        asyncio.run(exposures.expose(each, 0.0))
    assert engine.calls == [(8501, False), (9000, False), (9000, True)]
    asyncio.run(exposures.conceal("digits"))
    asyncio.run(exposures.expose(spec(), 0.0))
    exposures.forget()
    asyncio.run(exposures.expose(spec(), 0.0))
    assert engine.calls[3:] == [(8501, False), (8501, False)]


def test_what_is_exposed_is_checked_now_and_then(engine: RecordingEngine) -> None:
    exposures = exposures_of(engine)
    for now in (0.0, 29.0, 31.0, 60.0):
        asyncio.run(exposures.expose(spec(), now))
    assert len(engine.calls) == 2


def test_a_refusal_stays_known_and_is_tried_again_after_a_while(engine: RecordingEngine) -> None:
    exposures = exposures_of(engine)
    engine.is_refusing = True
    for now in (0.0, 0.1, 4.9):
        with pytest.raises(EngineError, match="no"):
            asyncio.run(exposures.expose(spec(), now))
    assert len(engine.calls) == 1
    with pytest.raises(EngineError, match="no"):
        asyncio.run(exposures.expose(spec(port=9000), 4.9))
    engine.is_refusing = False
    asyncio.run(exposures.expose(spec(port=9000), 9.9))
    assert engine.calls == [(8501, False), (9000, False), (9000, False)]
