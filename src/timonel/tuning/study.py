"""Studies on disk: settings, trials and results.

<workspace>/studies/<name>/
  study.json      the settings
  journal.log     Optuna's journal: every trial, value and state; none with a database
  controller.lock lock of the process that runs the study
  stop            request to stop the study

In a bucket, see `timonel.tuning.transfer`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from timonel.engines import Engine, get_engine
from timonel.errors import AlreadyExistsError, NotFoundError, SpecError
from timonel.storage import Workspace, exclusive, is_held, write_document
from timonel.training.handles import Job, Run
from timonel.training.jobs import find_job
from timonel.tuning.objectives import is_infeasible
from timonel.tuning.page import write_plot
from timonel.tuning.plots import Plots
from timonel.tuning.records import TrialRecord, TrialStatus, best_of
from timonel.tuning.settings import StudySettings
from timonel.tuning.storage import open_storage, repair_journal, storage_errors
from timonel.tuning.transfer import SETTINGS, StudyTransfer

KIND = "study"
# Attributes of trials in Optuna's storage.
RUN, REASON, STATUS, PRIOR, VALUES = "run", "reason", "status", "prior", "values"


class Study:
    """A study of a workspace, running or ended.

    Every access reads the storage again. Any process may read a study.

    Args:
        workspace: The workspace.
        settings: The study's settings.
    """

    def __init__(self, workspace: Workspace, settings: StudySettings) -> None:
        self.workspace = workspace
        self.settings = settings
        self.folder = workspace.studies / settings.name
        self._space = settings.search_space

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.settings.name

    @cached_property
    def storage(self) -> optuna.storages.BaseStorage:
        """Optuna's storage of the study."""
        return open_storage(self.settings.options["storage"], self.folder)

    @cached_property
    def transfer(self) -> StudyTransfer | None:
        """Transfers to and from the bucket of the workspace; None if it is a folder."""
        copy = self.workspace.local_copy
        return None if copy is None else StudyTransfer(copy.store, self.folder, self.settings.id)

    @property
    def has_journal(self) -> bool:
        """Whether the trials are in a journal, and not in a database."""
        return self.settings.options["storage"] is None

    def load(self, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        """Return Optuna's view of the study.

        Raises:
            DataError: The storage cannot be read.
            InputError: The bucket of the workspace cannot be read.
            NotFoundError: The storage no longer has the study.
        """
        self._pull_journal()
        try:
            with storage_errors(self.name):
                return optuna.load_study(
                    study_name=self.name, storage=self.storage, sampler=sampler
                )
        except KeyError as error:
            raise NotFoundError(
                f"the storage of the study {self.name} no longer has it",
                hint=f"restore the storage, or remove the folder {self.folder}",
            ) from error

    @property
    def trials(self) -> list[TrialRecord]:
        """All trials, oldest first.

        Raises:
            DataError: The storage cannot be read.
        """
        return self.records(self.load())

    def records(self, found: optuna.Study) -> list[TrialRecord]:
        """Return the trials of Optuna's view of the study; it reads new records only."""
        with storage_errors(self.name):
            trials = found.get_trials(deepcopy=False)
        return [self._record(trial) for trial in trials if _is_own(trial)]

    @property
    def priors(self) -> list[str]:
        """Earlier trials in the prior of the study, as ``study/number``."""
        trials = self.load().get_trials(deepcopy=False)
        return [trial.user_attrs[PRIOR] for trial in trials if PRIOR in trial.user_attrs]

    @property
    def trial_count(self) -> int:
        """Number of all trials in the storage."""
        return len(self.load().get_trials(deepcopy=False))

    @property
    def best_trials(self) -> list[TrialRecord]:
        """The best trial; with several objectives, those that no other trial dominates."""
        return best_of(self.trials, self.settings.objectives)

    @property
    def best_run(self) -> Run:
        """Run of the best trial.

        Raises:
            NotFoundError: No trial has succeeded yet.
            SpecError: Several objectives have several best trials.
        """
        best = self.best_trials
        if not best:
            raise NotFoundError(
                f"no trial of the study {self.name} has succeeded",
                hint=f"'timonel studies show {self.name}' shows why",
            )
        if len(self.settings.objectives) > 1:
            raise SpecError(
                "a study of several objectives has several best trials",
                hint="choose one of best_trials",
            )
        return self.run_of(best[0])

    def run_of(self, trial: TrialRecord) -> Run:
        """Return a trial's run.

        Raises:
            NotFoundError: The trial has no run.
        """
        if trial.run_id is None:
            raise NotFoundError(f"trial {trial.number} of {self.name} has no run")
        engine = get_engine(self.settings.engine, self.workspace)
        return Run(trial.run_id, self.workspace, Job(trial.run_id, engine))

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each trial.

        Raises:
            SpecError: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - optional
        except ImportError:
            raise SpecError("to_dataframe needs pandas", hint="pip install pandas") from None

        metrics = [objective.metric for objective in self.settings.objectives]
        return pd.DataFrame(
            [
                {
                    "number": trial.number,
                    "status": trial.status,
                    **dict(zip(metrics, trial.values, strict=False)),
                    **trial.params,
                    "run_id": trial.run_id,
                    "duration_s": (trial.ended_at or time.time()) - trial.started_at,
                }
                for trial in self.trials
            ]
        )

    def best_first(self, trials: list[TrialRecord]) -> list[TrialRecord]:
        """Return trials in the order of the first objective, then those without a result."""
        objective = self.settings.objectives[0]
        return sorted(
            trials,
            key=lambda trial: (
                trial.status != "succeeded",
                objective.loss(trial.values[0]) if trial.values else 0,
                trial.number,
            ),
        )

    def facts(self, trials: Sequence[TrialRecord]) -> dict[str, str]:
        """Return script, goal, algorithm and progress in words."""
        settings = self.settings
        return {
            "script": settings.entry,
            "goal": ", ".join(map(str, settings.objectives)),
            "algorithm": settings.options["algorithm"],
            "trials": f"{sum(t.status != 'running' for t in trials)} of {settings.trials}",
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write figures of the study to a PNG file, or to an HTML page with its trials.

        Args:
            path: A name that ends in ``.png`` or ``.html``.

        Raises:
            SpecError: The name has another ending.
            InputError: The file cannot be written.
        """
        objectives, found = self.settings.objectives, self.load()
        trials = self.best_first(self.records(found))
        best = frozenset(trial.number for trial in best_of(trials, objectives))
        plots = Plots(found, objectives, self._space, trials, best)
        write_plot(Path(path), plots, self.facts(trials))

    @contextlib.contextmanager
    def controlled(self) -> Iterator[None]:
        """Be the study's controller during the block.

        Raises:
            LockedError: Another process of this machine is.
            SpecError: Another machine is.
        """
        with contextlib.ExitStack() as held:
            held.enter_context(exclusive(self.lock, timeout_s=1))  # readers hold it briefly
            if self.transfer is not None:
                held.enter_context(self.transfer.lease.held())
                self._pull_journal(is_controller=True)
            if self.has_journal:
                repair_journal(self.folder)
            self.save()
            self.clear_stop()
            yield

    def push(self) -> None:
        """Upload the new records of the trials; for the controller.

        Raises:
            LostLeaseError: Another machine continues the study.
            InputError: The bucket cannot be written.
        """
        if self.transfer is not None and self.has_journal:
            self.transfer.push_journal()

    @property
    def is_running(self) -> bool:
        """Whether a process runs the study."""
        is_here = is_held(self.lock)
        return is_here or (self.transfer is not None and self.transfer.lease.is_alive)

    @property
    def lock(self) -> Path:
        """Lock file of the process that runs the study."""
        return self.folder / "controller.lock"

    @property
    def stop_file(self) -> Path:
        """File that asks the running process to stop."""
        return self.folder / "stop"

    def stop(self) -> None:
        """Ask the study and its running trials to stop; return at once.

        Raises:
            RemoteJobError: A trial runs on another machine, whose controller has ended.
        """
        self.stop_file.touch()
        if self.transfer is not None:
            self.transfer.request_stop()
        if self.is_running:
            return
        engine = get_engine(self.settings.engine, self.workspace)
        for trial in self.trials:
            if trial.status == "running" and trial.run_id is not None:
                _cancel(engine, self.workspace, trial.run_id)

    def clear_stop(self) -> None:
        """Remove a request to stop."""
        self.stop_file.unlink(missing_ok=True)
        if self.transfer is not None:
            self.transfer.clear_stop()

    def save(self) -> None:
        """Write the settings."""
        self._write_settings()
        if self.transfer is not None:
            self.transfer.push_settings()

    def create(self) -> None:
        """Write the settings of a new study, whose trials have a storage already.

        Raises:
            AlreadyExistsError: The bucket of the workspace has a study of this name.
        """
        self._write_settings()
        if self.transfer is None:
            return
        try:
            self.transfer.create()
        except AlreadyExistsError:
            (self.folder / SETTINGS).unlink()
            raise

    def _write_settings(self) -> None:
        body = self.settings.model_dump(mode="json")
        write_document(self.folder / SETTINGS, KIND, body)

    def _pull_journal(self, *, is_controller: bool = False) -> None:
        """Bring the journal up to date, if another machine may have written it."""
        if self.transfer is None or not self.has_journal:
            return
        if self.transfer.pull_journal(is_controller=is_controller, lock=self.lock):
            self.__dict__.pop("storage", None)  # it has read records that do not count

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        started, ended = trial.datetime_start, trial.datetime_complete
        curve = tuple(
            (step, value)
            for step, value in sorted(trial.intermediate_values.items())
            if not math.isnan(value)
        )
        return TrialRecord(
            number=trial.number,
            status=_status(trial),
            params=self._space.values_of(trial.params),
            # Optuna gives a stopped trial the last value that it reported.
            values=tuple(trial.values or ()) if trial.state is TrialState.COMPLETE else (),
            curve=curve,
            run_id=trial.user_attrs.get(RUN),
            reason=trial.user_attrs.get(REASON, ""),
            started_at=0.0 if started is None else started.timestamp(),
            ended_at=None if ended is None else ended.timestamp(),
        )


def _cancel(engine: Engine, workspace: Workspace, run_id: str) -> None:
    """Stop a trial's job, if it was started."""
    try:
        engine.cancel(run_id)
    except NotFoundError:
        if engine.shares_machine and workspace.is_remote:
            with contextlib.suppress(NotFoundError):
                find_job(workspace, run_id)  # raises an error that names its machine


def _is_own(trial: FrozenTrial) -> bool:
    """Return whether a trial of the storage is one of the study's."""
    attributes = trial.user_attrs
    # Leave out results of earlier studies, queued points and dropped proposals.
    is_dropped = trial.state is TrialState.FAIL and attributes.keys().isdisjoint({VALUES, STATUS})
    return trial.state is not TrialState.WAITING and PRIOR not in attributes and not is_dropped


def _status(trial: FrozenTrial) -> TrialStatus:
    if trial.state is TrialState.COMPLETE:
        return "infeasible" if is_infeasible(trial) else "succeeded"
    if trial.state is TrialState.PRUNED:
        return "stopped early"
    if trial.state is TrialState.FAIL:
        return cast("TrialStatus", trial.user_attrs.get(STATUS, "failed"))
    return "running"
