"""The data plane: what REST and gRPC have in common.

All skins find a version, look up a signature, turn their wire form into arrays and come here.
Everything raises `StatusError`. Only `Call.predict` and `Execution.result` wait for a model: in an
event loop, `timonel.serving.futures` waits for a run's future first.
"""

from timonel.serving.inference.call import Call, Execution, Outputs
from timonel.serving.inference.context import NO_CONTEXT, RequestContext
from timonel.serving.inference.plane import Configurator, DataPlane, Metadata

__all__ = [
    "NO_CONTEXT",
    "Call",
    "Configurator",
    "DataPlane",
    "Execution",
    "Metadata",
    "Outputs",
    "RequestContext",
]
