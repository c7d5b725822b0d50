"""Write scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SCALAR = 1  # DATA_CLASS_SCALAR


class Summaries:
    """TensorBoard event files, with folders and tags as in Keras' own callbacks.

    ``train`` has ``batch_loss`` by step and ``epoch_loss`` by epoch, ``validation`` has the
    ``epoch_loss`` of validation; an evaluator's values are in ``evaluator``, by step.

    Args:
        folder: Folder of the event files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def step(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step, buffered."""
        for name, value in values.items():
            self._scalar("train", f"batch_{name}", value, step)

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        """Write an epoch's metrics."""
        for name, value in values.items():
            inner = name.removeprefix("val_")
            self._scalar("train" if inner == name else "validation", f"epoch_{inner}", value, epoch)
        self.flush()

    def evaluation(self, values: Mapping[str, float], step: int) -> None:
        """Write an evaluator's results for the weights after ``step`` steps."""
        for name, value in values.items():
            self._scalar("evaluator", f"evaluation_{name}_vs_iterations", value, step)
        self.flush()

    def flush(self) -> None:
        """Flush all files to disk."""
        for writer in self._writers.values():
            writer.flush()

    def _scalar(self, part: str, tag: str, value: float, step: int) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        if part not in self._writers:
            self._writers[part] = tf.summary.create_file_writer(str(self._folder / part))
        # tf.summary.scalar needs TensorBoard itself; its format needs only this.
        kind = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=kind, data_class=_SCALAR)
        with self._writers[part].as_default():
            tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=metadata)
