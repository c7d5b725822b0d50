"""Graph models in a real TensorFlow.js, in a real browser: `make test-browser`."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timonel.edge.browser
from timonel.edge.device_model import load_device_model
from timonel.edge.tfjs import write_tfjs

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

COMPUTE = """async ([model, weights, input, shape]) => {
  const weightData = Uint8Array.from(atob(weights), (each) => each.charCodeAt(0)).buffer;
  const weightSpecs = model.weightsManifest[0].weights;
  const graph = await tf.loadGraphModel(tf.io.fromMemory({
    modelTopology: model.modelTopology, weightSpecs, weightData, signature: model.signature }));
  const output = await graph.executeAsync(tf.tensor(input, shape));
  return { inputs: graph.inputs.length, values: Array.from(output.dataSync()) };
}"""


def test_loops_and_gelu(browser: Any, tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.GRU(4),
            layers.Dense(4, activation="gelu"),
            layers.Dense(2),
        ]
    )
    model.export(str(tmp_path / "exported"), verbose=False)
    original = load_device_model(tmp_path / "exported", None)
    original.save(tmp_path / "saved")
    (tmp_path / "tfjs").mkdir()
    _, shard = write_tfjs(tmp_path / "saved", tmp_path / "tfjs", "none")
    graph = json.loads((tmp_path / "tfjs" / "model.json").read_text())
    weights = base64.b64encode((tmp_path / "tfjs" / shard).read_bytes()).decode()
    script = Path(timonel.edge.browser.__path__[0], "tf.min.js.gz").read_bytes()
    page = browser.new_page()
    page.add_script_tag(content=gzip.decompress(script).decode())
    for row in np.random.default_rng(0).normal(size=(5, 1, 6, 3)).astype(np.float32):
        expected = original.run({original.specs[0].name: row})["output_0"][0]
        arguments = [graph, weights, row.ravel().tolist(), list(row.shape)]
        found = page.evaluate(COMPUTE, arguments)
        assert found["inputs"] == 1
        assert found["values"] == pytest.approx(expected.tolist(), abs=1e-4)
    page.close()
