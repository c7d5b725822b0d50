"""BentoML: a service with one API, its workers and adaptive batching as the environment says."""

from __future__ import annotations

import os

import bentoml
import numpy as np
import saved_model

_BATCHED = {"batchable": True, "batch_dim": 0, "max_batch_size": saved_model.MOST_ROWS,
            "max_latency_ms": 1000}  # fmt: skip


@bentoml.service(
    workers=int(os.environ["PROCESSES"]),
    threads=2 if saved_model.HEAVY else 1,
    traffic={"timeout": 60, "max_concurrency": 1000},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Service:
    def __init__(self) -> None:
        self._call = saved_model.load()

    if saved_model.HEAVY:

        @bentoml.api(**(_BATCHED if saved_model.BATCHING else {}))
        def predict(self, x: np.ndarray) -> np.ndarray:
            return self._call(np.asarray(x, np.float32))

    else:

        @bentoml.api(**(_BATCHED if saved_model.BATCHING else {}))
        async def predict(self, x: np.ndarray) -> np.ndarray:
            # In the event loop: a call takes less than the way to a thread and back.
            return self._call(np.asarray(x, np.float32))
