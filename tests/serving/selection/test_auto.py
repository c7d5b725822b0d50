from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from timonel.serving.manager.sources import version_folders
from timonel.serving.selection import choice
from timonel.serving.selection.auto import AutoRuntime
from timonel.serving.selection.choice import needs_tensorflow
from timonel.serving.settings.models import ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import StatusError

FLATBUFFER = Path(__file__).parents[2] / "fixtures" / "tflite" / "contract.tflite"
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
        return needs_tensorflow(models, settings)

    told = RuntimeSettings(name="auto", by_model={"lite": "litert"})
    assert not needed(told, model(lite.parent, "lite"))
    assert not needed(AUTO, model(lite.parent))
    assert needed(told, model(lite.parent, "lite"), model(tmp_path / "nowhere"))
    preferring = RuntimeSettings(prefer_tflite=True)
    assert not needed(preferring, model(lite.parent))
    # A later version counts, and what cannot be looked into is most likely TensorFlow's.
    (lite.parent / "2").mkdir()
    assert needed(preferring, model(lite.parent))
    assert needed(AUTO, model(tmp_path / "nowhere"))
    assert needed(AUTO, model("s3://bucket/model"))
    assert (needed(RuntimeSettings()), needed(AUTO)) == (True, False)
    (tmp_path / "python" / "1").mkdir(parents=True)
    (tmp_path / "python" / "1" / "model.py").write_text("")
    assert not needed(AUTO, model(tmp_path / "python"))


@pytest.mark.parametrize("name", ["timonel-runtime.json", "timonel-runtime.tflite"])
def test_a_device_in_a_version_is_not_read_at_the_start(lite, name):
    """Reading it would never end. The load refuses the version."""
    evidence = {"kind": "runtime-choice", "format": 1, "runtime": "litert"}
    evidence |= {"reason": "", "saved_model": "", "converted": ""}
    (lite / "assets.extra").mkdir()
    (lite / "assets.extra" / "timonel-runtime.json").write_text(json.dumps(evidence))
    (lite / "assets.extra" / name).unlink(missing_ok=True)
    (lite / "assets.extra" / name).symlink_to("/dev/zero")
    assert needs_tensorflow([model(lite.parent)], AUTO)
    assert not any(thread.name == "look" for thread in threading.enumerate())


def test_only_the_runtime_of_a_version_is_imported(lite):
    loaded = AutoRuntime().load(lite, RuntimeSettings(name="litert"))
    x = np.ones((2, 2), np.float32)
    assert loaded.run("serving_default", {"x": x})["doubled"].tolist() == [[2, 2], [2, 2]]
    loaded.close()


def test_an_unknown_runtime_is_refused(lite):
    with pytest.raises(StatusError, match="there is no runtime none"):
        AutoRuntime().load(lite, RuntimeSettings(name="none"))


def test_a_folder_that_hangs_counts_as_one_for_tensorflow(lite, tmp_path, monkeypatch):
    released = threading.Event()

    def list_folder(base):
        if base == tmp_path / "hung":
            released.wait(60)
        return version_folders(base)

    monkeypatch.setattr(choice, "version_folders", list_folder)
    monkeypatch.setattr(choice, "_READ_S", 0.1)
    models = [model(lite.parent), model(tmp_path / "hung")]
    assert needs_tensorflow(models, RuntimeSettings(prefer_tflite=True))
    released.set()
