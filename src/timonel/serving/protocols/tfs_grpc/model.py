"""ModelService: report versions and reload the list of models."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any

import grpc

from timonel.serving.futures import in_pool
from timonel.serving.inference import DataPlane, RequestContext, conversion
from timonel.serving.manager.model_config import next_models
from timonel.serving.protocols.tfs_grpc.calls import Answer, handler
from timonel.serving.protos.messages import get_model_status_pb2, model_management_pb2
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.metrics import tensorflow_serving_families
from timonel.serving.telemetry.monitor import Monitor

NAME = "tensorflow.serving.ModelService"


class ModelService:
    """The methods of ModelService; all raise `StatusError`.

    Args:
        plane: Data plane with the model versions.
        pool: Executor for parsing large requests and adding up metrics.
        monitor: Records each request and has the metrics.
        may_reload: Whether clients may replace the list of models.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        monitor: Monitor | None = None,
        *,
        may_reload: bool = True,
    ) -> None:
        self._may_reload = may_reload
        self._plane = plane
        self._pool = pool
        self._monitor = monitor

    def handlers(self) -> Any:
        """Return the gRPC handler of the service."""
        methods: dict[str, tuple[Answer, Any]] = {
            "GetModelStatus": (self.status, get_model_status_pb2.GetModelStatusRequest),
            "HandleReloadConfigRequest": (self.reload, model_management_pb2.ReloadConfigRequest),
        }
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                name: handler(answer, name, request_type, self._pool, self._monitor)
                for name, (answer, request_type) in methods.items()
            },
        )

    async def status(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the status of a model's versions; labels are ignored."""
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        encoded: bytes = conversion.status_response(
            self._plane.status(spec.name, version)
        ).SerializeToString()
        return encoded

    async def reload(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Replace the list of models, and return the increase of metrics meanwhile.

        A failure becomes the call's status. TensorFlow Serving also writes it into a response,
        which gRPC does not send.
        """
        if not self._may_reload:
            raise StatusError(
                Code.PERMISSION_DENIED,
                "Clients cannot replace the models of this server. "
                "Start it with --allow-reload, or with keys.",
            )
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid_argument(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. "
                "Only ModelConfigList is currently supported"
            )
        names = frozenset(request.metric_names)
        before = await in_pool(self._pool, self._counters, names)
        await asyncio.wrap_future(self._plane.reconfigure(next_models(request.config)))
        return await in_pool(self._pool, self._reloaded, names, before)

    def _reloaded(self, names: frozenset[str], before: dict[str, int]) -> bytes:
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, value in sorted(self._counters(names).items()):
            response.metric.add(name=name, int64_value_increase=value - before.get(name, 0))
        encoded: bytes = response.SerializeToString()
        return encoded

    def _counters(self, names: frozenset[str]) -> dict[str, int]:
        """Return the first sample of each named counter, by name."""
        if self._monitor is None or not names:
            return {}
        firsts = [
            family.samples[0]
            for family in tensorflow_serving_families(self._monitor.counts())
            if family.samples and family.type != "histogram"
        ]
        counted = {first.name.replace(":", "/"): int(first.value) for first in firsts}
        return {name: value for name, value in counted.items() if name in names}
