"""Batching in a server: around a runtime, and below the data plane."""

from __future__ import annotations

import time

import numpy as np
import pytest

from timonel.serving.batching.batched_model import BatchingModel
from timonel.serving.batching.runtime import BatchingRuntime
from timonel.serving.inference import Call, RequestContext
from timonel.serving.inference.context import Observation
from timonel.serving.manager.catalogue import Servable
from timonel.serving.runtimes.base import ScheduledModel
from timonel.serving.settings import ModelSettings, RuntimeSettings, ServerSettings
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters, NoBatching
from timonel.serving.status import Code, StatusError
from timonel.testing.runtimes import FakeRuntime

X = {"x": np.ones(2, np.float32)}


@pytest.fixture
def version(tmp_path):
    (tmp_path / "saved_model.pb").write_text("3")
    return tmp_path


def test_each_versions_observer_is_told_of_its_batches(version):
    told = []

    def observer(path):
        return lambda batch: told.append((path, batch.rows))

    batching = AdaptiveBatching(assumed=("*",))
    runtime = BatchingRuntime(FakeRuntime(), batching, observer)
    runtime.prepare()
    model = runtime.load(version, RuntimeSettings(batching=batching))
    assert model.run("serving_default", X)["y"].tolist() == [3, 3]
    assert told == [(version, 2)]
    model.close()
    runtime.close()


def test_a_requests_deadline_comes_with_it_and_its_wait_is_measured(version):
    batching = BatchingParameters()
    settings = RuntimeSettings(batching=batching)
    model = BatchingRuntime(FakeRuntime(), batching).load(version, settings)
    assert isinstance(model, ScheduledModel)
    observation = Observation("GRPC", "Predict", "m", time.monotonic())
    servable = Servable("m", 1, model)
    late = RequestContext(deadline=time.monotonic() - 1, observation=observation)
    call = Call(servable, late)
    with pytest.raises(StatusError) as told:
        call.predict(call.signature(""), X)
    assert told.value.code is Code.RESOURCE_EXHAUSTED
    in_time = Call(servable, RequestContext(observation=observation))
    assert in_time.predict(in_time.signature(""), X)["y"].tolist() == [3, 3]
    assert observation.queue_s > 0
    model.close()


@pytest.mark.parametrize(
    ("batching", "batched"), [(AdaptiveBatching(), True), (NoBatching(), False)]
)
def test_a_server_batches_unless_told_otherwise(version, batching, batched):
    settings = ServerSettings(
        models=(ModelSettings(name="m", base_path="/m"),),
        runtime=RuntimeSettings(name="tensorflow", batching=batching),
    )
    assert ServerSettings.model_validate(settings.model_dump(mode="json")) == settings
    model = BatchingRuntime(FakeRuntime(), batching).load(version, settings.runtime)
    assert isinstance(model, BatchingModel) is batched
    model.close()
