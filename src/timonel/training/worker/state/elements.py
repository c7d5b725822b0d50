"""Convert batches made by Python code to ``tf.data`` elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Elements:
    """Common structure and types of batches.

    Args:
        keras: Keras of the model.
        examples: First batches, which define types and shapes; the first dimension, and all in
            which they differ, are unknown.
    """

    def __init__(self, keras: Any, examples: Sequence[Any]) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        self._nest = tf.nest
        self._floatx = keras.backend.floatx()
        shapes = [self._leaves(example) for example in examples]
        first = shapes[0]
        specs = [
            tf.TensorSpec(
                [None, *_common([leaves[place].shape[1:] for leaves in shapes])], leaf.dtype
            )
            for place, leaf in enumerate(first)
        ]
        self.spec = tf.nest.pack_sequence_as(_tuples(examples[0]), specs)
        self.dtypes = [spec.dtype for spec in specs]
        self.shapes = [spec.shape for spec in specs]

    def flat(self, batch: Any) -> tuple[Any, ...]:
        """Flatten a batch to its arrays."""
        return tuple(self._leaves(batch))

    def packed(self, leaves: Sequence[Any]) -> Any:
        """Pack tensors into the batches' structure."""
        for leaf, shape in zip(leaves, self.shapes, strict=True):
            leaf.set_shape(shape)
        return self._nest.pack_sequence_as(self.spec, list(leaves))

    def _leaves(self, batch: Any) -> list[Any]:
        found = [np.asarray(leaf) for leaf in self._nest.flatten(_tuples(batch))]
        return [leaf.astype(self._floatx) if leaf.dtype.kind == "f" else leaf for leaf in found]


def can_be_elements(batch: Any) -> bool:
    """Whether a batch consists of arrays only."""
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    leaves = tf.nest.flatten(_tuples(batch))
    return bool(leaves) and all(
        hasattr(leaf, "shape") and len(leaf.shape) > 0 and not hasattr(leaf, "indices")
        for leaf in leaves
    )


def _tuples(batch: Any) -> Any:
    """Convert lists to tuples: tf.data would stack lists."""
    if isinstance(batch, list | tuple):
        return tuple(_tuples(item) for item in batch)
    if isinstance(batch, dict):
        return {name: _tuples(item) for name, item in batch.items()}
    return batch


def _common(shapes: Sequence[Sequence[int]]) -> list[int | None]:
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
