"""The bound: only the model of a version, on files in memory, as many batches at once as cores.

usage: predict_bound.py VERSION SOURCE OUT
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings.runtime import RuntimeSettings

runtime = TensorFlowRuntime()
settings = RuntimeSettings(intra_op_threads=1, frozen_graphs=True)
model = runtime.load(Path(sys.argv[1]), settings)
files = [path.read_bytes() for path in sorted(Path(sys.argv[2]).rglob("*.jpg"))]
batches = [np.array(files[i : i + 32], object) for i in range(0, len(files), 32)]
with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    found = pool.map(lambda batch: model.run("serving_default", {"image_bytes": batch}), batches)
    np.save(sys.argv[3] + ".npy", np.concatenate([each["scores"] for each in found]))
Path(sys.argv[3] + ".npy").replace(sys.argv[3])
