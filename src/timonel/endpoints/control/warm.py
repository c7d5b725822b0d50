"""The warm zygote of a workspace as a service: replicas start without importing TensorFlow."""

from __future__ import annotations

from pathlib import Path

from timonel.endpoints.gateway.process import SOCKETS
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import ServiceSpec
from timonel.errors import TimonelError
from timonel.serving.isolation.warm_client import WARM_ZYGOTE
from timonel.serving.references import resolve
from timonel.serving.selection.auto import runtime_of
from timonel.serving.settings import AUTO, TENSORFLOW, RuntimeSettings
from timonel.storage import Workspace, local_path

SERVICE = "endpoints-warm"
_RUNTIME = "timonel.serving.runtimes.tensorflow:TensorFlowRuntime"


def uses_tensorflow(spec: EndpointSpec, workspace: Workspace) -> bool:
    """Return whether replicas of an endpoint import TensorFlow in processes of their own."""
    if _value(spec.server_args, "--isolation") == "none":
        return False
    runtime = _value(spec.server_args, "--runtime")
    if runtime is not None and runtime.rpartition("=")[2] != AUTO:
        return runtime.rpartition("=")[2] == TENSORFLOW
    for version in spec.traffic.versions:
        try:
            base = local_path(resolve(spec.model, workspace, version).base_path)
        except TimonelError:
            return True  # in a bucket, say
        if runtime_of(base / str(version), RuntimeSettings()) == TENSORFLOW:
            return True
    return False


def _value(arguments: tuple[str, ...], flag: str) -> str | None:
    """Return the value of an option of ``timonel serve``."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else "".join(arguments[index + 1 : index + 2])
    return None


def warm_environment(endpoints: Path) -> dict[str, str]:
    """Return the variables by which replicas find the warm zygote, the same at any time.

    Args:
        endpoints: Folder of the endpoints.
    """
    return {WARM_ZYGOTE: str(_socket(endpoints / SOCKETS))}


def warm_service(sockets: Path) -> ServiceSpec:
    """Return the service that runs the warm zygote."""
    return ServiceSpec(
        name=SERVICE,
        module="timonel.serving.isolation.warm",
        args=(str(_socket(sockets)), _RUNTIME, "$(PORT)"),
        replicas=1,
        stop_grace_s=5,
    )


def _socket(sockets: Path) -> Path:
    return sockets / "warm.sock"
