"""Ray Serve: a deployment behind HAProxy; over gRPC it speaks TensorFlow Serving's service."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import orjson
import ray
import saved_model
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions, gRPCOptions
from starlette.requests import Request
from starlette.responses import Response


def _replicas() -> dict[str, Any]:
    """Return the number of replicas; from zero on, as fast as its settings allow."""
    most = int(os.environ["PROCESSES"])
    if os.environ.get("FROM_ZERO") != "1":
        return {"num_replicas": most}
    scaling = AutoscalingConfig(
        min_replicas=0,
        max_replicas=most,
        upscale_delay_s=0,
        downscale_delay_s=1,
        downscale_to_zero_delay_s=1,
        look_back_period_s=1,
        metrics_interval_s=0.1,
    )
    return {"autoscaling_config": scaling}


@serve.deployment(
    **_replicas(),
    max_ongoing_requests=100,
    logging_config={"enable_access_log": False},
    # No logical resources: there are as many replicas as asked for.
    ray_actor_options={"num_cpus": 0},
    health_check_period_s=3600,
    health_check_timeout_s=3600,
)
class Model:
    def __init__(self) -> None:
        self._call = saved_model.load()
        # Imports TensorFlow, which is there now.
        from tensorflow_serving.apis import predict_pb2

        self._messages = predict_pb2

    async def __call__(self, request: Request) -> Response:
        document = orjson.loads(await request.body())
        y = await self._answer(np.array(document["instances"], np.float32))
        body = orjson.dumps({"predictions": y}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    async def Predict(self, request: bytes) -> Any:  # noqa: N802 - the service's name for it
        x = self._messages.PredictRequest.FromString(request).inputs["x"]
        shape = [dim.size for dim in x.tensor_shape.dim]
        y = await self._answer(np.frombuffer(x.tensor_content, np.float32).reshape(shape))
        answer = self._messages.PredictResponse()
        output = answer.outputs["y"]
        output.dtype = 1  # DT_FLOAT
        output.tensor_content = y.tobytes()
        for size in y.shape:
            output.tensor_shape.dim.add(size=size)
        return answer

    async def _answer(self, x: np.ndarray) -> np.ndarray:
        if saved_model.BATCHING:
            return await self._together(x)  # type: ignore[no-any-return]
        return self._call(x)

    @serve.batch(max_batch_size=saved_model.MOST_REQUESTS, batch_wait_timeout_s=0)
    async def _together(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        y = self._call(np.concatenate(rows))
        return np.split(y, np.cumsum([len(x) for x in rows])[:-1])


def main() -> None:
    # Of its own, whatever other cluster runs here.
    ray.init(
        "local", include_dashboard=False, _temp_dir=os.environ["RAY_FOLDER"], log_to_driver=False
    )
    grpc = None
    if os.environ.get("GRPC_PORT"):
        grpc = gRPCOptions(
            port=int(os.environ["GRPC_PORT"]),
            grpc_servicer_functions=["service.add_prediction_service"],
        )
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=int(os.environ["REST_PORT"])),
        grpc_options=grpc,
    )
    serve.run(Model.bind(), route_prefix=f"/v1/models/{saved_model.NAME}:predict")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()
    ray.shutdown()


if __name__ == "__main__":
    main()
