"""Models for batch prediction, whose processes are forked from one that imported TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data.conftest import make_csv, make_images
from tests.serving.conftest import exports, png, publish
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.selection.factory import runtime_for
from timonel.serving.settings import RuntimeSettings
from timonel.storage import Workspace

__all__ = ["exports", "make_csv", "make_images", "png"]


class _Shared(Runtime):
    """A runtime that batch predictions of several tests use, one after the other."""

    def __init__(self, runtime: Runtime) -> None:
        self.name = runtime.name
        self._runtime = runtime

    def prepare(self) -> None:
        self._runtime.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        return self._runtime.load(path, settings)


@pytest.fixture(scope="session")
def imported() -> Iterator[list[Runtime]]:
    """Runtimes whose zygote has imported TensorFlow, which takes three seconds."""
    made: list[Runtime] = []
    yield made
    for runtime in made:
        runtime.close()


@pytest.fixture(autouse=True)
def shared(imported: list[Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    def first_or_new(settings: Any, **options: Any) -> Runtime:
        if not imported:
            imported.append(runtime_for(settings, **{**options, "log": None}))
        return _Shared(imported[0])

    monkeypatch.setattr("timonel.batch.model.runtime_for", first_or_new)


@pytest.fixture
def models(exports: Path, picky: Path, workspace: Workspace) -> Workspace:
    """A workspace with the models images, doubler, table, picky."""
    for name in ("images", "doubler", "table"):
        (workspace.models / name).mkdir(parents=True)
        publish(exports / name, workspace.models / name, 1)
    (workspace.models / "picky").mkdir()
    publish(picky, workspace.models / "picky", 1)
    return workspace


@pytest.fixture(scope="session")
def picky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that fails on negative numbers, and is out of memory with more than 64 rows."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def run(x: Any) -> dict[str, Any]:
        rows = tf.shape(x, tf.int64)[0]
        huge = tf.where(rows > 64, tf.constant(2**50, tf.int64), tf.constant(1, tf.int64))
        with tf.control_dependencies([tf.debugging.assert_non_negative(x, "negative")]):
            return {"y": tf.sqrt(x) + tf.zeros([huge])[0]}

    module = tf.Module()
    module.run = run
    folder = tmp_path_factory.mktemp("picky") / "model"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": run})
    return folder
