"""The flow of requests: the code that all protocols share.

All functions raise `StatusError`. Only `Call.predict` and `Execution.result` wait for a model.
"""

from timonel.serving.inference.flow import Call, Codec, Exchange, Flow, Outputs, Run

__all__ = [
    "Call",
    "Codec",
    "Exchange",
    "Flow",
    "Outputs",
    "Run",
]
