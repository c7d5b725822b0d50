"""A SavedModel as the peers' servers call it: what each of them would write, once for all.

Environment: ``MODEL_FOLDER`` (a version of a SavedModel), ``MODEL_NAME``, ``BATCHING`` (1: put
requests together), ``HEAVY`` (1: a call takes milliseconds, so it is worth a thread of its own).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import numpy as np

FOLDER = os.environ["MODEL_FOLDER"]
NAME = os.environ["MODEL_NAME"]
BATCHING = os.environ.get("BATCHING") == "1"
HEAVY = os.environ.get("HEAVY") == "1"
MOST_ROWS = 1024
MOST_REQUESTS = 16
"""As many as are under way: a larger batch would be waited for in vain."""

Call = Callable[[np.ndarray], np.ndarray]


def load() -> Call:
    """Return the model as a function from float32 [N, ...] to float32 [N, classes]."""
    import tensorflow as tf

    loaded = tf.saved_model.load(FOLDER)
    signature = loaded.signatures["serving_default"]

    def call(x: np.ndarray) -> np.ndarray:
        return signature(x=tf.constant(x, tf.float32))["y"].numpy()  # type: ignore[no-any-return]

    shape = signature.structured_input_signature[1]["x"].shape
    call(np.zeros((1, *shape[1:]), np.float32))
    call.keep = loaded  # type: ignore[attr-defined]  # variables live as long as it does
    # TensorFlow's millions of objects are not looked through again at every full collection.
    gc.collect()
    gc.freeze()
    return call
