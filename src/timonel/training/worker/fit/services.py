"""Services that the ``fit`` calls, custom loops and plug-ins of a task share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.tracking import RunWriter
from timonel.training.cluster import Cluster
from timonel.training.settings import Settings
from timonel.training.worker.fit.agreement import Agreement
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.state.process_variables import ProcessVariables
from timonel.training.worker.termination import Termination

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    """Services of a task.

    Attributes:
        keras: The Keras module that the script uses; None for custom loops outside a job.
        cluster: The job's tasks and this task's position.
        checkpoints: State kept between generations.
        tensorboard_dir: Folder of TensorBoard's event files.
        strategy: The strategy that the script runs under; None without one.
        settings: How the job trains.
        run: The chief's run writer; None in other tasks.
        agreement: Requests that all tasks handle at the same step.
        termination: Tells whether the process was asked to stop.
        barrier: Waits for all tasks before they exit.
        variables: All variables of the process.
    """

    keras: Any
    cluster: Cluster
    checkpoints: Checkpoints
    tensorboard_dir: Path
    strategy: Any = None
    settings: Settings = field(default_factory=Settings)
    run: RunWriter | None = None
    agreement: Agreement = field(default_factory=Agreement)
    termination: Termination = field(default_factory=Termination)
    barrier: Callable[[], None] = lambda: None
    variables: ProcessVariables = field(default_factory=ProcessVariables)

    @property
    def replicas(self) -> int:
        """Number of replicas that train together."""
        return 1 if self.strategy is None else int(self.strategy.num_replicas_in_sync)

    @property
    def workers(self) -> int:
        """Number of processes that run the training loop together.

        1 without a strategy. With parameter servers, only the chief runs it; it distributes all
        data itself.
        """
        if self.strategy is None or self.settings.uses_parameter_servers:
            return 1
        return len(self.cluster.trainers)

    def warn(self, message: str) -> None:
        """Log a warning; the chief also records it as an event."""
        logger.warning("%s", message)
        if self.run is not None:
            self.run.event("log", level="warning", message=message)
