"""Zygotes with the real thing: TensorFlow is imported once, and never initialised there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.engines.local.harness import LocalHarness
from timonel.engines import JobState
from timonel.processes.zygote_client import LINGER

PROGRAM = """
import ctypes, glob, os, sys
def blas_threads():
    folder = os.path.dirname(os.path.dirname(np.__file__))
    library = ctypes.CDLL(glob.glob(folder + "/numpy.libs/*openblas*")[0])
    return library.scipy_openblas_get_num_threads64_()
assert "tensorflow" in sys.modules, "not warm"
import numpy as np
import tensorflow as tf
from pathlib import Path
Path(os.environ["TIMONEL_TASK_DIR"], "ready").touch()
print("sum", int(tf.reduce_sum(tf.ones([64, 64]) @ tf.ones([64, 64]))))
print("draw", np.random.randint(1 << 30))
np.ones((300, 300)) @ np.ones((300, 300))
print("threads of linear algebra", os.environ["OPENBLAS_NUM_THREADS"], blas_threads())
"""


@pytest.mark.process
def test_tasks_compute_in_images_forked_after_the_import(
    tmp_path: Path, zygote_runtime: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    jobs = tmp_path / "jobs"
    env = {LINGER: "0", "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "3"}
    harness = LocalHarness.at(jobs, tmp_path, ("tensorflow", "keras"), env)
    # On a busy machine the import alone can take longer than the harness waits for anything.
    spec = harness.spec().model_copy(update={"module": "program", "start_timeout_s": 120.0})
    harness.engine.submit(spec)
    lines = [line.text for line in harness.engine.logs("job", follow=True)]
    status = harness.engine.status("job")
    assert status.state is JobState.SUCCEEDED, lines
    assert lines.count("sum 262144") == 2
    assert len({line for line in lines if line.startswith("draw")}) == 2
    assert lines.count("threads of linear algebra 3 3") == 2
    assert not [line for line in lines if "without a zygote" in line]
    eventually(lambda: not harness.processes())
