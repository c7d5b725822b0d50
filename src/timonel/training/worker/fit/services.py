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
    """Services of a task."""

    keras: Any  # the script's; None for custom loops outside a job
    cluster: Cluster
    checkpoints: Checkpoints
    tensorboard_dir: Path
    strategy: Any = None  # that the script runs under; None without one
    settings: Settings = field(default_factory=Settings)
    run: RunWriter | None = None  # the chief's; None in other tasks
    agreement: Agreement = field(default_factory=Agreement)  # handles requests at the same step
    termination: Termination = field(default_factory=Termination)
    barrier: Callable[[], None] = lambda: None  # waits for all tasks before they exit
    variables: ProcessVariables = field(default_factory=ProcessVariables)  # all of the process

    @property
    def replicas(self) -> int:
        """Number of replicas that train together."""
        return 1 if self.strategy is None else int(self.strategy.num_replicas_in_sync)

    @property
    def workers(self) -> int:
        """Number of processes that run the training loop together.

        With parameter servers, only the chief runs it; it distributes all data itself.
        """
        if self.strategy is None or self.settings.uses_parameter_servers:
            return 1
        return len(self.cluster.trainers)

    def warn(self, message: str) -> None:
        """Log a warning; the chief also records it as an event."""
        logger.warning("%s", message)
        if self.run is not None:
            self.run.event("log", level="warning", message=message)
