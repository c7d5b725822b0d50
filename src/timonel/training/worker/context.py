"""What a script may ask of the job it runs in: ``timonel.training.context()``.

A script needs none of this. One that wants control takes it from here, and it works outside a job
too, so that the script can be tried out with plain ``python``: one process that leads, files under
``timonel-job/`` in the present folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timonel.training.worker.task.cluster import Cluster

LOCAL_FOLDER = "timonel-job"


@dataclass(frozen=True)
class TrainingContext:
    """The job that this process is a task of. Immutable.

    Attributes:
        cluster: The job's tasks and this one's place among them.
        job_dir: The job's folder.
        strategy: The ``tf.distribute.Strategy`` the script runs under; None without one.
        params: The parameters given with ``--set``.
        data: The datasets given with ``--data``, by name.
        in_job: False where the script was started by hand.
    """

    cluster: Cluster
    job_dir: Path
    strategy: Any = None
    params: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    in_job: bool = True

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: what should be done once is done there."""
        return self.cluster.is_chief

    @property
    def coordinator(self) -> Any:
        """The ClusterCoordinator of a job with parameter servers, for a loop of one's own."""
        return getattr(self.strategy, "_cluster_coordinator", None)

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints are, and where a script may put its own."""
        return self.job_dir / "checkpoints"

    @property
    def export_dir(self) -> Path:
        """Where the model is exported, for ``timonel export`` to publish."""
        return self.job_dir / "export"

    @property
    def tensorboard_dir(self) -> Path:
        """Where TensorBoard's event files are."""
        return self.job_dir / "tensorboard"

    def export(
        self,
        model: Any,
        *,
        preprocess: Callable[[Any], Any] | None = None,
        input_kind: Literal["image", "table"] | None = None,
        columns: Mapping[str, str] | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> None:
        """Export ``model`` instead of the one that was fitted last.

        Every task of a job must call this, at the same place.

        Args:
            model: A built Keras model.
            preprocess: Takes one raw example (a string scalar, or a dictionary of scalars by
                column) and gives the model's input. Without it, the transforms of
                `timonel.data.load` are used, where they are known.
            input_kind: What ``preprocess`` takes; ``image`` unless ``columns`` are given.
            columns: Of a table, ``float32`` or ``string`` by column.
            labels: Names of the classes; by default those of the dataset that was loaded.

        Raises:
            ModelError: The model cannot be exported.
        """
        if self.cluster.role == "evaluator":
            return  # the trainers export what they have trained
        from timonel.training.worker import exporting  # noqa: PLC0415 - imports TensorFlow

        chosen = input_kind or ("table" if columns else "image")
        own = exporting.OwnPreprocessing(preprocess, chosen, columns) if preprocess else None
        exporting.export_own(self.export_dir, model, own, labels)

    def checkpointer(self, things: Mapping[str, Any], *, data: Any) -> Any:
        """Return what saves and restores a training loop that the script writes itself.

        ``checkpointer(...).epochs(n)`` yields the epochs that are left, ``.batches()`` the batches
        that are left of one; ``.state`` is a dictionary of the script's own. Every task of a job
        goes through the same loop.

        Args:
            things: Keras models, optimizers and metrics, and TensorFlow variables, by name; models
                must be built.
            data: A ``tf.data.Dataset`` of batches, such as what `timonel.data.load` returns.

        Raises:
            SpecError: These are others than before a restart.
        """
        from timonel.training.worker.fit import loops  # noqa: PLC0415 - imports TensorFlow

        return loops.checkpointer(things, data, self.job_dir)


_entered: list[TrainingContext] = []


def enter(context: TrainingContext) -> None:
    """Make ``context`` the one of this process; called once, before the script runs."""
    _entered[:] = [context]


def context() -> TrainingContext:
    """Return the job this process is a task of, or one that stands in for it outside a job."""
    return _entered[0] if _entered else _local()


def _local() -> TrainingContext:
    named = os.environ.get("TIMONEL_DATA")
    return TrainingContext(
        cluster=Cluster({"chief": ("127.0.0.1:0",)}, "chief", 0),
        job_dir=Path.cwd() / LOCAL_FOLDER,
        data={"": named} if named else {},
        in_job=False,
    )
