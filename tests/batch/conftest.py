"""Models for batch prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.conftest import make_csv, make_images
from tests.serving.conftest import exports, png, publish
from timonel.serving.selection.auto import AutoRuntime
from timonel.storage import Workspace

__all__ = ["exports", "make_csv", "make_images", "png"]


@pytest.fixture(autouse=True)
def load_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load models in this process, where each would import TensorFlow in its own.

    Tests marked ``process`` use the real runtime.
    """
    if request.node.get_closest_marker("process") is None:
        monkeypatch.setattr("timonel.batch.model.ChildRuntime", lambda *_, **__: AutoRuntime())


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


@pytest.fixture
def centred(workspace: Workspace, tmp_path: Path) -> Path:
    """A version whose result for a row depends on the other rows of its batch."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def run(x: Any) -> dict[str, Any]:
        return {"y": x - tf.reduce_mean(x)}

    module = tf.Module()
    module.run = run
    tf.saved_model.save(module, str(tmp_path / "centred"), signatures={"serving_default": run})
    (workspace.models / "centred").mkdir(parents=True)
    return publish(tmp_path / "centred", workspace.models / "centred", 1)
