"""Data plane: the code that REST and gRPC share.

All frontends find a version, look up a signature, convert their wire format to arrays and call this
package. All functions raise `StatusError`. Only `Call.predict` and `Execution.result` wait for a
model: in an event loop, first await the execution's future with `timonel.serving.futures`.
"""

from timonel.serving.inference.context import NO_CONTEXT, RequestContext
from timonel.serving.inference.plane import (
    Call,
    DataPlane,
    Execution,
    Metadata,
    Outputs,
)

__all__ = [
    "NO_CONTEXT",
    "Call",
    "DataPlane",
    "Execution",
    "Metadata",
    "Outputs",
    "RequestContext",
]
