"""What a script sets at its start has the effect that it has without a job."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import BareEngine
from timonel.errors import UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def run_script(jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path) -> Any:
    def run(text: str, **options: Any) -> Run:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(text))
        return train(script, workspace=jobs_workspace, on=engine, **options)

    return run


SETTINGS = """
    import json, logging, os, sys
    from pathlib import Path

    here = Path(__file__).parent
    (here / "keras").mkdir(exist_ok=True)
    (here / "keras" / "keras.json").write_text(json.dumps({
        "floatx": "float32", "epsilon": 1e-7, "backend": "tensorflow",
        "image_data_format": "channels_first",
    }))
    os.environ["KERAS_HOME"] = str(here / "keras")
    logging.basicConfig(level=logging.INFO, format="MINE %(message)s", filename=here / "own.log")
    logging.info("hello")
    import keras, numpy as np

    keras.config.set_floatx("float64")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
    (here / "found.json").write_text(json.dumps({
        "format": keras.config.image_data_format(),
        "dtype": str(model.get_weights()[0].dtype),
        "fits": "timonel" in sys.modules and model.fit.__module__,
    }))
"""


def test_environment_logging_and_float_type(run_script: Any, tmp_path: Path) -> None:
    run = run_script(SETTINGS)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["format"], found["dtype"]) == ("channels_first", "float64")
    assert (tmp_path / "own.log").read_text() == "MINE hello\n"
    assert run.record.devices["precision"] == "float64"
    # The call was managed: its final state is saved, and its metrics are recorded.
    assert (run.workspace.runs / run.id).is_dir()
    assert run.record.metrics


def test_a_script_that_chooses_another_backend_is_refused(run_script: Any) -> None:
    with pytest.raises(UserCodeError, match="got KERAS_BACKEND=jax"):
        run_script("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n")


def test_a_script_that_never_imports_it_ends_well(run_script: Any) -> None:
    run_script("import os\nos.environ['KERAS_HOME'] = 'k'\nprint('done')\n")
