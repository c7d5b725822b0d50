"""Studies on disk: settings, trials and results.

<workspace>/studies/<name>/
  study.json      the settings
  journal.log     Optuna's journal: every trial, value and state; none with a database
  controller.lock lock of the process that runs the study
  stop            request to stop the study
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import FrozenTrial, TrialState

from timonel.engines import get_engine
from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError, SpecError, TimonelError
from timonel.storage import Workspace, exclusive, is_held, read_document, write_document
from timonel.training.handles import Job, Run
from timonel.tuning.objectives import is_infeasible
from timonel.tuning.page import write_plot
from timonel.tuning.plots import Plots
from timonel.tuning.records import TrialRecord, TrialStatus, best_of
from timonel.tuning.settings import StudySettings
from timonel.tuning.storage import JOURNAL, open_storage, storage_errors

_logger = logging.getLogger(__name__)
_KIND = "study"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
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

    def load(self, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        """Return Optuna's view of the study.

        Raises:
            DataError: The storage cannot be read.
            NotFoundError: It no longer has the study.
        """
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
        """Number of trials; 0 before the study exists."""
        exists = (self.folder / "study.json").exists()
        return len(self.load().get_trials(deepcopy=False)) if exists else 0

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

    @property
    def is_running(self) -> bool:
        """Whether a process runs the study."""
        return is_held(self.lock)

    @property
    def lock(self) -> Path:
        """Lock file of the process that runs the study."""
        return self.folder / "controller.lock"

    @property
    def stop_file(self) -> Path:
        """File that asks the running process to stop."""
        return self.folder / "stop"

    def stop(self) -> None:
        """Ask the study and its running trials to stop; return at once."""
        self.stop_file.touch()
        if not self.is_running:
            engine = get_engine(self.settings.engine, self.workspace)
            for trial in self.trials:
                if trial.status == "running" and trial.run_id is not None:
                    engine.cancel(trial.run_id)

    def save(self) -> None:
        """Write the settings."""
        body = self.settings.model_dump(mode="json")
        write_document(self.folder / "study.json", _KIND, body)

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


def create_study(
    workspace: Workspace,
    settings: StudySettings,
    priors: Sequence[FrozenTrial] = (),
    points: Sequence[Mapping[str, Any]] = (),
) -> Study:
    """Create a study.

    Args:
        workspace: The workspace.
        settings: The study's settings.
        priors: Trials of earlier studies that its algorithm learns from.
        points: Optuna's parameters of its first trials.

    Raises:
        DataError: The storage cannot be used.
        SpecError: The name is not a valid folder name.
        AlreadyExistsError: A study of this name exists.
    """
    if not _NAME.match(settings.name):
        raise SpecError(
            f"the study's name is invalid: {settings.name!r}",
            hint="use letters, digits, '_', '-' and '.', and start with a letter or digit",
        )
    if settings.name == "last":
        raise SpecError("'last' means the newest study", hint="use another --study")
    study = Study(workspace, settings)
    with exclusive(workspace.studies / f".{settings.name}.lock"):
        if (study.folder / "study.json").exists():
            space = open_study(workspace, settings.name).settings.search_space
            other = "" if space == settings.search_space else " with another search space"
            raise AlreadyExistsError(
                f"the study {settings.name} exists{other}",
                hint=f"continue it with 'timonel studies resume {settings.name}', or use another "
                "--study",
            )
        study.folder.mkdir(parents=True, exist_ok=True)
        (study.folder / JOURNAL).unlink(missing_ok=True)
        try:
            with storage_errors(study.name):
                found = optuna.create_study(
                    study_name=study.name,
                    storage=study.storage,
                    directions=[objective.goal for objective in settings.objectives],
                )
                found.add_trials(priors)
                for point in points:
                    found.enqueue_trial(dict(point))
        except DuplicatedStudyError:
            raise AlreadyExistsError(
                f"the storage has a study {study.name}, which another workspace may own",
                hint="use another --study",
            ) from None
        # Written last: a folder without it is no study yet.
        study.save()
    return study


def open_study(workspace: Workspace, name: str) -> Study:
    """Return a study by name, or the newest one for ``last``.

    Raises:
        NotFoundError: No such study exists.
        CorruptError: Its settings cannot be read.
    """
    if name == "last":
        found = list_studies(workspace)
        if not found:
            raise NotFoundError("no studies yet", hint="'timonel tune' starts one")
        return found[0]
    if not _NAME.match(name) or not (workspace.studies / name / "study.json").is_file():
        raise NotFoundError(
            f"no study {name!r} in this workspace", hint="'timonel studies' lists the studies"
        )
    return _read(workspace, name)


def _read(workspace: Workspace, name: str) -> Study:
    file = workspace.studies / name / "study.json"
    body = read_document(file, _KIND)
    try:
        settings = StudySettings.model_validate(body)
    except ValueError as error:
        raise CorruptError(f"{file} holds no valid settings: {error}") from error
    return Study(workspace, settings)


def list_studies(workspace: Workspace) -> list[Study]:
    """Return the studies of a workspace, newest first.

    Unreadable settings are logged and skipped: one broken file must not hide the other studies.
    """
    found = []
    for file in workspace.studies.glob("*/study.json"):
        try:
            found.append(_read(workspace, file.parent.name))
        except TimonelError as error:
            _logger.warning("skipped a study: %s", error)
    return sorted(found, key=lambda study: study.settings.created_at, reverse=True)
