"""The training context, which tells a script about its job: ``timonel.training.context()``.

Scripts do not need it. It also works outside a job, so that a script can be tested with plain
``python``: as a single chief process with files under ``timonel-job/`` in the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timonel.tracking import RunWriter
from timonel.training.cluster import Cluster

LOCAL_FOLDER = "timonel-job"


@dataclass(frozen=True)
class TrainingContext:
    """The job of this process. Immutable.

    Attributes:
        cluster: The job's tasks and this task's position.
        job_dir: The job's folder.
        strategy: The ``tf.distribute.Strategy`` the script runs under; None without one.
        params: The parameters given with ``--set``.
        data: The datasets given with ``--data``, by name.
        in_job: False outside a job.
        run: Writes the run's record; None in other tasks than the chief, and outside a job.
    """

    cluster: Cluster
    job_dir: Path
    strategy: Any = None
    params: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    in_job: bool = True
    run: RunWriter | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this task leads the job and does its one-time work."""
        return self.cluster.is_chief

    @property
    def coordinator(self) -> Any:
        """ClusterCoordinator of a job with parameter servers, for custom training loops."""
        return getattr(self.strategy, "_cluster_coordinator", None)

    @property
    def checkpoint_dir(self) -> Path:
        """Folder of the job's checkpoints, also for those of the script."""
        return self.job_dir / "checkpoints"

    @property
    def export_dir(self) -> Path:
        """Folder of the exported model, which ``timonel export`` publishes."""
        return self.job_dir / "export"

    @property
    def tensorboard_dir(self) -> Path:
        """Folder of TensorBoard's event files."""
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
        """Export ``model`` instead of the last fitted one.

        Every task of a job must call this, at the same point.

        Args:
            model: A built Keras model.
            preprocess: Maps one raw example (a string scalar, or a dictionary of scalars by
                column) to the model's input. Default: the transforms of `timonel.data.load`, if
                known.
            input_kind: Input of ``preprocess``; ``image`` unless ``columns`` are given.
            columns: For a table: ``float32`` or ``string`` by column.
            labels: Class names; by default those of the loaded dataset.

        Raises:
            ModelError: The model cannot be exported.
        """
        if self.cluster.role == "evaluator":
            return  # trainers do the export
        from timonel.training.worker import exporting  # noqa: PLC0415 - imports TensorFlow

        chosen = input_kind or ("table" if columns else "image")
        exporting.export_own(
            self.export_dir,
            model,
            labels,
            preprocess=preprocess,
            input_kind=chosen,
            columns=columns,
        )

    def checkpointer(self, things: Mapping[str, Any], *, data: Any) -> Any:
        """Return a checkpointer for a custom training loop.

        ``checkpointer(...).epochs(n)`` yields the remaining epochs, ``.batches()`` the remaining
        batches of an epoch; ``.state`` is a dictionary for the script's values. Every task of a job
        must run the same loop.

        Args:
            things: Keras models, optimizers and metrics, and TensorFlow variables, by name; models
                must be built.
            data: A ``tf.data.Dataset`` of batches, such as the result of `timonel.data.load`.

        Raises:
            SpecError: The objects differ from those before a restart.
        """
        from timonel.training.worker.fit import loops  # noqa: PLC0415 - imports TensorFlow

        return loops.checkpointer(things, data, cluster=self.cluster, job_dir=self.job_dir)


_entered: list[TrainingContext] = []


def enter(context: TrainingContext) -> None:
    """Set this process's context; called once, before the script runs."""
    _entered[:] = [context]


def context() -> TrainingContext:
    """Return this process's training context, or a stand-in outside a job."""
    if _entered:
        return _entered[0]
    named = os.environ.get("TIMONEL_DATA")
    return TrainingContext(
        cluster=Cluster({"chief": ("127.0.0.1:0",)}, "chief", 0),
        job_dir=Path.cwd() / LOCAL_FOLDER,
        data={"": named} if named else {},
        in_job=False,
    )


def report(metrics: Mapping[str, float], step: int | None = None) -> None:
    """Record metric values of a script without ``model.fit``.

    Only the chief records them; in other tasks and outside a job, this does nothing.

    Args:
        metrics: Values by metric name.
        step: The step or epoch of the values; the number of earlier reports by default.
    """
    run = context().run
    if run is not None:
        place = _reports[0] if step is None else step
        _reports[0] = place + 1
        run.metrics({name: float(value) for name, value in metrics.items()}, step=place)


_reports = [0]
