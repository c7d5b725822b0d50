"""The random state of a process that a training step or a callback may draw from.

Kernels of TensorFlow's old random operations (``tf.random.uniform`` and its like, inside a
``tf.function`` or a ``Dataset.map``) hold a state that cannot be read: these are not restored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.training.worker.private import hidden_state


def capture() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and TensorFlow's generators of this process."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.array(keys), int(position), int(has_gauss), float(cached)),
        "tensorflow": hidden_state.op_seed_state(),
        "tf_keras": hidden_state.tf_keras_seed_state(),
    }


def restore(saved: Mapping[str, Any]) -> None:
    """Give back what `capture` has found."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    hidden_state.set_op_seed_state(saved["tensorflow"])
    hidden_state.set_tf_keras_seed_state(saved["tf_keras"])
