"""The state of flatbuffers between two calls."""

from __future__ import annotations

import contextlib
from typing import Any


def forget_state(interpreter: Any) -> None:
    """Reset the variables of a LiteRT interpreter, such as the state of an LSTM."""
    try:
        interpreter.reset_all_variables()
    except RuntimeError:
        # Those of signatures that were never called have no memory yet.
        with contextlib.suppress(RuntimeError):
            for key in interpreter.get_signature_list():
                runner = interpreter.get_signature_runner(key)
                interpreter._interpreter.AllocateTensors(runner._subgraph_index)
            interpreter.reset_all_variables()
