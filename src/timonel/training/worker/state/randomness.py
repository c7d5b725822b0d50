"""Random state of a process, which training steps or callbacks may use.

Kernels of TensorFlow's old random operations (such as ``tf.random.uniform`` inside a
``tf.function`` or a ``Dataset.map``) have state that cannot be read: it is not restored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.training.worker.private import hidden_state


def capture() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and TensorFlow's generators."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.array(keys), int(position), int(has_gauss), float(cached)),
        "tensorflow": hidden_state.op_seed_state(),
        "tf_keras": hidden_state.tf_keras_seed_state(),
    }


def restore(saved: Mapping[str, Any]) -> None:
    """Restore the state from `capture`."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    hidden_state.set_op_seed_state(saved["tensorflow"])
    hidden_state.set_tf_keras_seed_state(saved["tf_keras"])
