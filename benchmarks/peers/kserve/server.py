"""KServe's Python server: both of its protocols over REST, the second one over gRPC."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kserve
import numpy as np
import saved_model
from kserve import InferOutput, InferRequest, InferResponse
from kserve.protocol.rest.multiprocess.server import RESTServerProcess


class SavedModel(kserve.Model):
    def __init__(self, *, answers: bool = True) -> None:
        super().__init__(saved_model.NAME)
        self._call = saved_model.load() if answers else None
        self._threads = ThreadPoolExecutor(2) if answers else None
        self.ready = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers are started with a pickled copy, and load for themselves.
        return SavedModel, ()

    async def predict(
        self,
        payload: dict[str, Any] | InferRequest,
        headers: Any = None,
        response_headers: Any = None,
    ) -> dict[str, Any] | InferResponse:
        del headers, response_headers
        if isinstance(payload, dict):
            y = await self._answer(np.array(payload["instances"], np.float32))
            return {"predictions": y.tolist()}
        y = await self._answer(payload.inputs[0].as_numpy())
        output = InferOutput("y", list(y.shape), "FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(payload.id, self.name, [output])

    async def _answer(self, x: np.ndarray) -> np.ndarray:
        assert self._call is not None
        if not saved_model.HEAVY:
            return self._call(x)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, x)


if __name__ == "__main__":
    # Workers silent for 5 s are started anew: for ever, where their imports take longer than that.
    RESTServerProcess.is_alive.__defaults__ = (120.0,)
    # With workers this process only watches over them.
    model = SavedModel(answers=kserve.model_server.args.workers == 1)
    kserve.ModelServer().start([model])
