"""Exact resume for custom training loops.

    saved = context().checkpointer({"model": model, "optimizer": optimizer}, data=train)
    for epoch in saved.epochs(10):
        for x, y in saved.batches():
            train_step(x, y)

After a restart, the loop continues at the same epoch and batch. Between two batches, due
checkpoints are saved and requests to stop are handled.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from timonel.errors import SpecError
from timonel.training.cluster import Cluster
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoints, FitState, Progress
from timonel.training.worker.fit.services import Services
from timonel.training.worker.inputs import building, fit_data, sharding
from timonel.training.worker.private import hidden_state, tf_data
from timonel.training.worker.state import snapshot
from timonel.training.worker.state.checkpoint_writer import Due
from timonel.training.worker.state.data_position import Feed, StreamFeed
from timonel.training.worker.state.replays import ReplayFeed
from timonel.training.worker.state.variables import StrategyReplicas
from timonel.training.worker.termination import Terminated

_services: list[Services] = []
_numbers = itertools.count()


def configure(services: Services) -> None:
    """Set the services of this process's loops; called before the script runs."""
    checkpoints = services.checkpoints.beside("loops")
    _services[:] = [replace(services, checkpoints=checkpoints)]


def checkpointer(
    things: Mapping[str, Any], data: Any, *, cluster: Cluster, job_dir: Path
) -> LoopCheckpointer:
    """Return the checkpointer for a loop; see `TrainingContext.checkpointer`."""
    services = _services[0] if _services else _outside_a_job(cluster, job_dir)
    return LoopCheckpointer(services, next(_numbers), things, data)


def _outside_a_job(cluster: Cluster, job_dir: Path) -> Services:
    folder = job_dir / "checkpoints" / "loops"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder, writes=True, progress=folder / "progress")
    return Services(None, cluster, checkpoints, job_dir / "tensorboard")


class LoopCheckpointer:
    """Saves and restores a custom loop. All tasks of a job must run the same loop."""

    def __init__(
        self, services: Services, number: int, things: Mapping[str, Any], data: Any
    ) -> None:
        self.state: dict[str, Any] = {}  # plain data of the script, which are saved too
        self._services = services
        self._number = number  # of the loop within the process
        self._things = things
        self._replicas = StrategyReplicas(services.strategy, services.workers)
        self._due = Due(services.checkpoints.policy)
        saved = services.checkpoints.latest(number)
        self._saved = saved.state if saved is not None else None
        self._progress = saved.progress if saved is not None else Progress()
        self._trained = self._progress.steps
        self._step = self._progress.step
        self._feed, self._data = _feed_of(data, resumes=saved is not None)

    def epochs(self, count: int) -> Iterator[int]:
        """Restore the state, then yield the remaining epoch numbers below ``count``."""
        services = self._services
        self._restore()
        with services.termination.deferred(lambda: services.agreement.ask(TaskAction.LEAVE)):
            services.agreement.begin()
            for epoch in range(self._progress.next_epoch, count):
                yield epoch
                self._feed.steps_end()
                self._progress = self._progress.after(epoch, {}, self._trained)
                self._step = 0
                self._save(self._progress)
            services.checkpoints.wait()

    def batches(self) -> Iterator[Any]:
        """Yield the epoch's remaining batches, distributed to the replicas if needed."""
        self._feed.epoch_begins(self._progress.next_epoch)
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._feed.seek(saved.extra["data"], self._trained, within=saved.progress.step > 0)
            snapshot.restore_random_state(saved.extra["random"])
        batches = iter(self._data if self._replicas.count == 1 else self._distributed())
        while True:
            self._feed.step_begins(self._trained)
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            self._step, self._trained = self._step + 1, self._trained + 1
            self._boundary()

    def _boundary(self) -> None:
        services = self._services
        services.checkpoints.note_steps(self._trained)
        due = services.agreement.is_due() and self._due.by_clock()
        decided = services.agreement.at_boundary([TaskAction.SAVE] if due else [])
        by_steps = self._due.by_steps(self._trained - 1, self._trained)
        if TaskAction.SAVE in decided or TaskAction.LEAVE in decided or by_steps:
            self._save(self._progress.within(self._step))
        if TaskAction.LEAVE in decided:
            services.checkpoints.wait(leaving=True)
            services.barrier()
            raise Terminated

    def _save(self, progress: Progress) -> None:
        self._due.saved()
        same, local = self._variables()
        extra = {
            "data": self._feed.position(self._trained),
            "random": snapshot.capture_random_state(),
            "state": copy.deepcopy(self.state),  # the script continues while it is written
            "others": self._services.variables.capture(hidden_state.identities([*same, *local])),
        }
        first, each = self._replicas.read_first(same), self._replicas.read(local)
        self._services.checkpoints.save(self._number, FitState(progress, first, each, (), extra))

    def _restore(self) -> None:
        self._build_optimizers()
        if self._saved is None:
            return
        same, local = self._variables()
        self._replicas.restore(same, self._saved.variables)
        if len(local) != len(self._saved.local):
            raise SpecError(
                f"the checkpoint has {len(self._saved.local)} variables that are not trained, the "
                f"checkpointer got {len(local)}",
                hint="pass the same objects to the checkpointer each time the script starts",
            )
        self._replicas.assign(local, self._saved.local, sums=False)
        owned = hidden_state.identities([*same, *local])
        self._services.variables.restore(self._saved.extra["others"], owned)
        self.state.update(self._saved.extra["state"])

    def _build_optimizers(self) -> None:
        models = [thing for thing in self._things.values() if hasattr(thing, "trainable_variables")]
        trained = [variable for model in models for variable in model.trainable_variables]
        for thing in self._things.values():
            if hasattr(thing, "apply_gradients") and not getattr(thing, "built", False):
                thing.build(trained)

    def _variables(self) -> tuple[list[Any], list[Any]]:
        """Return the variables equal on all replicas, and those that may differ."""
        same: list[Any] = []
        local: list[Any] = []
        for thing in self._things.values():
            if hasattr(thing, "apply_gradients"):
                same += building.optimizer_variables(thing)
            elif hasattr(thing, "trainable_variables"):
                same += thing.trainable_variables
                local += thing.non_trainable_variables
            else:
                local += getattr(thing, "variables", [thing])
        return same, local

    def _distributed(self) -> Any:
        sharding.expect_training_data()
        return self._services.strategy.experimental_distribute_dataset(self._data)


def _feed_of(data: Any, *, resumes: bool) -> tuple[Feed, Any]:
    if not fit_data.is_dataset(data):
        raise SpecError(
            f"expected a tf.data.Dataset as data, got {type(data).__name__}",
            hint="for example the result of timonel.data.load()",
        )
    stream = tf_data.stream_behind_maps(data)
    if stream is not None:
        return StreamFeed(stream, ""), data
    feed = ReplayFeed(data, keeps_pass=False, wraps=resumes, is_sized=False)
    return feed, feed.dataset
