from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.selection.auto import AutoRuntime, runtimes_at_start
from timonel.serving.settings import ModelSettings, RuntimeSettings
from timonel.serving.status import StatusError

FLATBUFFER = Path(__file__).parents[2] / "fixtures" / "tflite" / "contract.tflite"
LITERT = "timonel.serving.runtimes.litert:LiteRtRuntime"
AUTO = RuntimeSettings(name="auto")


@pytest.fixture
def lite(tmp_path):
    folder = tmp_path / "lite" / "1"
    folder.mkdir(parents=True)
    shutil.copy(FLATBUFFER, folder / "model.tflite")
    return folder


def model(folder, name="m"):
    return ModelSettings(name=name, base_path=str(folder))


def test_what_is_needed_at_the_start(lite, tmp_path):
    def needed(settings, *models):
        return set(runtimes_at_start(models, settings))

    told = RuntimeSettings(name="auto", by_model={"lite": "litert"})
    assert needed(told, model(lite.parent, "lite")) == {"litert"}
    assert needed(told, model(lite.parent, "lite"), model(lite.parent)) == {"litert", "tensorflow"}
    preferring = RuntimeSettings(prefer_tflite=True)
    assert needed(preferring, model(lite.parent)) == {"litert"}
    # A later version counts, and what cannot be looked into is most likely TensorFlow's.
    (lite.parent / "2").mkdir()
    assert needed(preferring, model(lite.parent)) == {"tensorflow"}
    assert needed(AUTO, model(tmp_path / "nowhere")) == {"tensorflow"}
    assert needed(AUTO, model("s3://bucket/model")) == {"tensorflow"}
    (tmp_path / "python" / "1").mkdir(parents=True)
    (tmp_path / "python" / "1" / "model.py").write_text("")
    assert needed(AUTO, model(tmp_path / "python")) == set()


@pytest.mark.process
def test_a_parent_is_started_for_what_is_used(lite):
    asked = []

    def apart(name):
        asked.append(name)
        return ProcessRuntime(LITERT)

    runtime = AutoRuntime(apart, ["litert"])
    runtime.start()
    runtime.prepare()
    loaded = runtime.load(lite, RuntimeSettings(name="litert"))
    x = np.ones((2, 2), np.float32)
    assert loaded.run("serving_default", {"x": x})["doubled"].tolist() == [[2, 2], [2, 2]]
    assert asked == ["litert"]
    loaded.close()
    runtime.close()
    with pytest.raises(StatusError, match="stopping"):
        runtime.load(lite, RuntimeSettings(name="litert"))
