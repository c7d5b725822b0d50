"""MLServer: a custom runtime, as its documentation shows; settings are in the environment."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import saved_model
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class SavedModelRuntime(MLModel):
    async def load(self) -> bool:
        self._call = saved_model.load()
        self._threads = ThreadPoolExecutor(2)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        if saved_model.HEAVY:
            y = await asyncio.get_running_loop().run_in_executor(self._threads, self._call, x)
        else:
            y = self._call(x)
        return InferenceResponse(
            id=payload.id, model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)]
        )
