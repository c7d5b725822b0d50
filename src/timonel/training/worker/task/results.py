"""Record a function's return value in the run."""

from __future__ import annotations

import json
import logging
from typing import Any

from timonel.tracking import RunWriter

logger = logging.getLogger(__name__)

RESULT = "result"


def record(run: RunWriter, value: Any) -> None:
    """Record a function's return value, or log that JSON cannot represent it.

    NumPy and TensorFlow numbers and arrays become Python's.
    """
    try:
        plain = json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError, RecursionError):
        logger.info("what the function returned is not recorded: JSON has no %s", type(value))
        return
    run.event(RESULT, value=plain)


def _plain(value: Any) -> Any:
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(type(value).__name__)
