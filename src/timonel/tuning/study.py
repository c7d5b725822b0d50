"""Studies on disk: settings, trials and results.

<workspace>/studies/<name>/
  study.json      the settings
  journal.log     Optuna's journal: every trial, value and state
  controller.lock held by the process that runs the study
  stop            exists once the study was asked to stop
"""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, ConfigDict, Field

from timonel.engines import get_engine
from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError, SpecError
from timonel.storage import Workspace, exclusive, read_document, write_document
from timonel.storage.locks import LockedError
from timonel.training.handles import Job, Run
from timonel.tuning.objectives import Objective
from timonel.tuning.page import write_plot
from timonel.tuning.plots import Plots
from timonel.tuning.records import TrialRecord, TrialStatus
from timonel.tuning.space import SearchSpace
from timonel.tuning.stopping import StudyLimits

_KIND = "study"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
# Attributes of trials in Optuna's storage.
RUN, REASON, STATUS = "run", "reason", "status"


class StudySettings(BaseModel):
    """Settings of a study; only its number of trials ever changes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(description="Name of the study.")
    created_at: float = Field(description="Start time, in Unix seconds.")
    entry: str = Field(description="Script, notebook or module of the trials.")
    working_dir: str = Field(description="Folder in which the study was started.")
    data: str | dict[str, str] | None = Field(default=None, description="Dataset of the trials.")
    args: tuple[str, ...] = Field(default=(), description="Further arguments of the script.")
    engine: str = Field(default="local", description="Engine of the jobs.")
    space: dict[str, Any] = Field(description="Search space.")
    objectives: tuple[Objective, ...] = Field(description="Metrics to optimize.")
    options: dict[str, Any] = Field(description="All `TuneOptions`.")

    @property
    def trials(self) -> int:
        """Number of trials."""
        return int(self.options["trials"])

    @property
    def limits(self) -> StudyLimits:
        """Limits that end the study."""
        return StudyLimits(
            trials=self.trials,
            max_seconds=self.options["max_seconds"],
            trials_without_progress=self.options["patience"],
            max_failed=self.options["max_failed"],
        )

    @property
    def search_space(self) -> SearchSpace:
        """The search space."""
        return SearchSpace.from_json(self.space)


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

    @property
    def storage(self) -> optuna.storages.BaseStorage:
        """Optuna's storage of the study."""
        return JournalStorage(JournalFileBackend(str(self.folder / "journal.log")))

    def load(self, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        """Return Optuna's view of the study."""
        return optuna.load_study(study_name=self.name, storage=self.storage, sampler=sampler)

    @property
    def trials(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return self.records(self.load())

    def records(self, found: optuna.Study) -> list[TrialRecord]:
        """Return the trials of Optuna's view of the study, which reads only what is new."""
        return [self._record(trial) for trial in found.get_trials(deepcopy=False)]

    @property
    def trial_count(self) -> int:
        """Number of trials; 0 before the study exists."""
        exists = (self.folder / "study.json").exists()
        return len(self.load().get_trials(deepcopy=False)) if exists else 0

    @property
    def best_trials(self) -> list[TrialRecord]:
        """The best trial; with several objectives, those that no other trial dominates."""
        found = self.load()
        if not found.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return []
        if len(self.settings.objectives) == 1:
            return [self._record(found.best_trial)]
        return [self._record(trial) for trial in found.best_trials]

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
            import pandas as pd  # type: ignore[import-untyped] # noqa: PLC0415 - optional
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
        sign = -1 if self.settings.objectives[0].goal == "maximize" else 1
        return sorted(
            trials,
            key=lambda trial: (
                trial.status != "succeeded",
                sign * trial.values[0] if trial.values else 0,
                trial.number,
            ),
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write figures of the study to a PNG file, or to an HTML page with its trials.

        Args:
            path: A name that ends in ``.png`` or ``.html``.

        Raises:
            SpecError: The name has another ending.
            InputError: The file cannot be written.
        """
        settings, found = self.settings, self.load()
        trials = self.best_first(self.records(found))
        facts = {
            "script": settings.entry,
            "algorithm": settings.options["algorithm"],
            "trials": f"{sum(t.status != 'running' for t in trials)} of {settings.trials}",
        }
        best = frozenset(trial.number for trial in self.best_trials)
        plots = Plots(found, settings.objectives, self._space, trials, best)
        write_plot(Path(path), plots, facts)

    @property
    def is_running(self) -> bool:
        """Whether a process runs the study."""
        try:
            with exclusive(self.lock, timeout_s=0):
                return False
        except LockedError:
            return True

    @property
    def lock(self) -> Path:
        """Lock file that the process holds that runs the study."""
        return self.folder / "controller.lock"

    @property
    def stop_file(self) -> Path:
        """File whose existence asks the study to stop."""
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


def _status(trial: FrozenTrial) -> TrialStatus:
    if trial.state is TrialState.COMPLETE:
        return "succeeded"
    if trial.state is TrialState.PRUNED:
        return "stopped early"
    if trial.state is TrialState.FAIL:
        return cast("TrialStatus", trial.user_attrs.get(STATUS, "failed"))
    return "running"


def create_study(workspace: Workspace, settings: StudySettings) -> Study:
    """Create a study.

    Raises:
        SpecError: The name is not a valid folder name.
        AlreadyExistsError: A study of this name exists.
    """
    if not _NAME.match(settings.name):
        raise SpecError(
            f"the study's name is invalid: {settings.name!r}",
            hint="use letters, digits, '_', '-' and '.', and start with a letter or digit",
        )
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
        (study.folder / "journal.log").unlink(missing_ok=True)
        optuna.create_study(
            study_name=study.name,
            storage=study.storage,
            directions=[objective.goal for objective in settings.objectives],
        )
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
    file = workspace.studies / name / "study.json"
    if not _NAME.match(name) or not file.is_file():
        raise NotFoundError(
            f"no study {name!r} in this workspace", hint="'timonel studies' lists the studies"
        )
    body = read_document(file, _KIND)
    try:
        settings = StudySettings.model_validate(body)
    except ValueError as error:
        raise CorruptError(f"{file} holds no valid settings: {error}") from error
    return Study(workspace, settings)


def list_studies(workspace: Workspace) -> list[Study]:
    """Return the studies of a workspace, newest first."""
    files = workspace.studies.glob("*/study.json")
    found = [open_study(workspace, file.parent.name) for file in files]
    return sorted(found, key=lambda study: study.settings.created_at, reverse=True)


def repair_journal(study: Study) -> None:
    """Remove an incomplete last line, which a killed process may leave.

    The next line would be appended to it, and no process could read the journal again. Call it
    only while holding the study's lock.
    """
    path = study.folder / "journal.log"
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        keep = size
        while keep:
            file.seek(keep - 1)
            if file.read(1) == b"\n":
                break
            keep -= 1
        if keep < size:
            file.truncate(keep)
