"""Batching in a server: around a loaded version, and below the flow of requests."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.contracts.runtimes import FakeRuntime, RuntimeContract
from tests.serving.batching.runtime import ScheduledRuntime
from tests.serving.runtimes.faults import DoublerRuntime
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.context import Observation
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Servable
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters, NoBatching
from timonel.serving.settings.models import ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import Code, StatusError

X = {"x": np.ones(2, np.float32)}


@pytest.fixture
def version(tmp_path):
    (tmp_path / "saved_model.pb").write_text("3")
    return tmp_path


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return ScheduledRuntime(DoublerRuntime(), threads=3)


def load(version, batching, observer=None):
    model = FakeRuntime().load(version, RuntimeSettings(batching=batching))
    return scheduled(model, batching, observer, version=version)


def test_the_observer_is_told_of_batches(version):
    told = []
    model = load(version, AdaptiveBatching(assumed=("*",)), told.append)
    assert model.run("serving_default", X)["y"].tolist() == [3, 3]
    model.close()
    assert [batch.rows for batch in told] == [2]


def test_a_requests_deadline_comes_with_it_and_its_wait_is_measured(version):
    model = load(version, BatchingParameters())
    observation = Observation("GRPC", "Predict", "m", time.monotonic())
    servable = Servable("m", 1, model)
    call = Call(servable, observation, deadline=time.monotonic() - 1)
    with pytest.raises(StatusError) as told:
        call.predict(call.signature(""), X)
    assert told.value.code is Code.RESOURCE_EXHAUSTED
    in_time = Call(servable, observation)
    assert in_time.predict(in_time.signature(""), X)["y"].tolist() == [3, 3]
    assert observation.queue_s > 0
    model.close()


@pytest.mark.parametrize(
    ("batching", "batched"),
    [
        (AdaptiveBatching(assumed=("*",)), True),
        (AdaptiveBatching(), False),
        (NoBatching(), False),
    ],
)
def test_a_server_batches_unless_told_otherwise(version, batching, batched):
    settings = ServerSettings(
        models=(ModelSettings(name="m", base_path="/m"),),
        runtime=RuntimeSettings(name="tensorflow", batching=batching),
    )
    assert ServerSettings.model_validate(settings.model_dump(mode="json")) == settings
    told = []
    model = load(version, batching, told.append)
    model.run("serving_default", X)
    model.close()
    assert bool(told) is batched
