"""Versions are loaded, counted, and warmed up."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contracts.runtimes import FakeRuntime
from timonel.data.records import frame
from timonel.models.schema import WARMUP_FILE
from timonel.serving.protos.messages import prediction_log_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.runtimes.base import VersionFolder
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.counts import BatchKey, PathKey
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.version_loader import VersionLoader


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "m" / "3"
    (folder / WARMUP_FILE).parent.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("2")
    return VersionFolder("m", 3, "s3://b/m/3", folder)


def warm_up_with(version, *names):
    content = b""
    for name in names:
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.inputs[name].CopyFrom(to_proto(np.ones(2, np.float32)))
        content += b"".join(frame(log.SerializeToString()))
    (version.folder / WARMUP_FILE).write_bytes(content)


def loader_of(version, **load):
    settings = ServerSettings(
        models=(ModelSettings(name="m", base_path=str(version.folder.parent)),),
        load=LoadSettings(**load),
        runtime=RuntimeSettings(batching=AdaptiveBatching(assumed=("m",))),
    )
    return VersionLoader(settings, FakeRuntime(), Monitor())


def counted(loader):
    counts = loader._monitor.counts()
    return (
        {(key, value.took.count) for key, value in counts.loads.items()},
        {(key, value.records) for key, value in counts.warmups.items()},
        {key: value.rows.total for key, value in counts.batches.items()},
    )


def key(code):
    return PathKey("m", 3, "s3://b/m/3", code)


def test_a_load_its_warm_up_and_batches_are_counted(version):
    warm_up_with(version, "x", "x")
    loader = loader_of(version)
    model = loader.load(version)
    model.run("serving_default", {"x": np.ones(3, np.float32)})
    batches = {BatchKey("m", 3, "serving_default"): 2 + 2 + 3}
    assert counted(loader) == ({(key(Code.OK), 1)}, {(key(Code.OK), 2)}, batches)
    assert not loader._runtime.loaded[0].closed.is_set()
    model.close()


def test_a_warm_up_that_fails_fails_the_load_and_frees_the_model(version):
    warm_up_with(version, "x", "nope")
    loader = loader_of(version)
    with pytest.raises(StatusError, match="nope"):
        loader.load(version)
    loads, warm_ups, _ = counted(loader)
    assert (loads, warm_ups) == ({(key(Code.OK), 1)}, {(key(Code.INVALID_ARGUMENT), 1)})
    assert loader._runtime.loaded[0].closed.is_set()


def test_without_warm_up_no_request_is_sent(version):
    warm_up_with(version, "nope")
    loader = loader_of(version, warm_up=False)
    loader.load(version).close()
    assert counted(loader)[1] == set()


def test_a_load_that_fails_is_counted(version):
    (version.folder / "saved_model.pb").write_text("no number")
    loader = loader_of(version)
    with pytest.raises(StatusError) as caught:
        loader.load(version)
    assert counted(loader)[0] == {(key(caught.value.code), 1)}
