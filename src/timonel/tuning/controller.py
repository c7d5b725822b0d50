"""The loop that runs a study: propose values, start jobs, record results.

The loop keeps no state of its own: a trial's run is known to Optuna's storage before its job is
started, and to the bucket, if the workspace is in one. If the process is killed, jobs go on, and
the next controller adopts them, on this machine or another one.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from timonel.engines import Engine, FailureCause, FileFetchingEngine, JobState, JobStatus
from timonel.errors import (
    AlreadyExistsError,
    EngineError,
    InputError,
    Interrupted,
    NotFoundError,
    SpecError,
    UserCodeError,
)
from timonel.tracking import new_run_id, open_run, read_run
from timonel.tracking.events import FILE_NAME
from timonel.training.handles import Job, Run, resume_job
from timonel.training.jobs import restore_job, status_of
from timonel.tuning.curves import LearningCurves
from timonel.tuning.lease import LostStudyError
from timonel.tuning.objectives import is_infeasible
from timonel.tuning.points import PointSampler
from timonel.tuning.results import WITH_RESULT, Results
from timonel.tuning.space import SearchSpace, Value
from timonel.tuning.stopping import StoppingRule
from timonel.tuning.study import REASON, RUN, VALUES, Study
from timonel.tuning.tensorboard import ScalarReader, has_scalars

_logger = logging.getLogger(__name__)
_REFUSALS = (AlreadyExistsError, NotFoundError, SpecError)
_POLL_S, _REMOTE_POLL_S = 0.2, 1.0
_PUSH_S = 20.0
"""Interval of uploads between starts and ends of trials; each adds an object to the bucket."""
_AWAY_S = 900.0
"""Time for which trials go on while their cluster or bucket does not answer."""
_RECORD_S = 60.0
"""Time within which the record of an ended job of a cluster must be complete."""
_LAST_STEP = 2**31 - 1
"""Databases store steps in 32 bits, and Optuna takes none below 0."""
_FAILURES_AT_START = 3
"""Failed trials that end a study in which none has succeeded."""

Submit = Callable[[Mapping[str, Value], str, int], Run]
"""Function that starts a trial's job: parameter values, run ID, number of its slot."""
Notify = Callable[[str, int, Mapping[str, Any]], None]
"""Callback for an event, a trial's number and details.

Events are ``started``, ``continued``, ``warning``, ``progress`` and ``ended``.
"""


@dataclass
class _Running:
    trial: optuna.Trial
    slot: int
    run: Run
    curves: LearningCurves
    reported: int = 0
    stopped_by: str = ""
    ended_at: float | None = None
    """When the job was first seen to have ended."""
    compared: tuple[int, ...] = ()
    """Lengths of the curves that the stopping rule compared last."""


@dataclass
class StudyController:
    """Runs a study until its end. For one thread, under the study's lock.

    Args:
        submit: Starts a trial's job.
        rule: Stops trials early; None to let all of them end.
    """

    study: Study
    engine: Engine
    sampler: PointSampler
    submit: Submit
    rule: StoppingRule | None = None
    notify: Notify | None = None
    _running: list[_Running] = field(default_factory=list, init=False)
    _warned: set[str] = field(default_factory=set, init=False)
    _is_changed: bool = field(default=False, init=False)
    """Whether a trial has ended since the last upload."""
    _pushed_at: float = field(default=0.0, init=False)
    _away_since: float | None = field(default=None, init=False)
    _space: SearchSpace = field(init=False)
    _results: Results = field(init=False)
    _optuna: optuna.Study = field(init=False)

    def run(self) -> str:
        """Run trials until a limit is reached; return the limit in words."""
        self._space = self.study.settings.search_space
        self._optuna = self.study.load(self.sampler)
        self._results = Results(self.study.settings, self._optuna, self._publish)
        poll_s = _POLL_S if self.engine.shares_machine else _REMOTE_POLL_S
        try:
            self._adopt()
            while True:
                self._follow_patiently()
                self._check_stop()
                if len(self._running) < self.study.settings.options["parallel"]:
                    limit = self._limit()
                    if limit is None:
                        self._start(*self._propose())
                        continue
                    if not self._running:
                        self.study.push()
                        return limit
                time.sleep(poll_s)
        except LostStudyError:
            raise  # the other controller follows the jobs
        except BaseException:
            # A study that cannot go on must not leave jobs behind that nobody follows.
            with contextlib.suppress(InputError):
                self._check_lease()
            self._stop_all()
            with contextlib.suppress(InputError):
                self.study.push()
            raise

    def _check_lease(self) -> None:
        if self.study.transfer is not None:
            self.study.transfer.lease.check()

    def _follow_patiently(self) -> None:
        """Follow the trials; jobs of a cluster go on while it or the bucket is away."""
        try:
            self._follow()
            self._push_if_due()
        except (InputError, EngineError) as error:
            now = time.monotonic()
            self._away_since = self._away_since or now
            is_away = not isinstance(error, _REFUSALS) and now - self._away_since < _AWAY_S
            if self.engine.shares_machine or not is_away:
                raise
            _logger.warning("%s", error)
        else:
            self._away_since = None

    def _push_if_due(self) -> None:
        """Upload the trials' new records, if a trial has ended or the last upload is long ago."""
        lease = None if self.study.transfer is None else self.study.transfer.lease
        if lease is not None and lease.is_lost:
            lease.check()
        now = time.monotonic()
        if self._is_changed or now - self._pushed_at > _PUSH_S:
            self.study.push()
            self._is_changed, self._pushed_at = False, now

    def _check_stop(self) -> None:
        if self.study.stop_file.exists():
            raise Interrupted(
                f"the study {self.study.name} was stopped",
                hint=f"'timonel studies resume {self.study.name}' continues it",
            )

    def _publish(self, event: str, number: int, **facts: Any) -> None:
        if self.notify is not None:
            self.notify(event, number, facts)

    def _adopt(self) -> None:
        """Follow, resume or start the trials that an earlier controller left."""
        for trial in self._optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            live = optuna.Trial(self._optuna, trial._trial_id)
            run_id = trial.user_attrs.get(RUN)
            values = trial.user_attrs.get(VALUES)
            if values is None:  # killed while it was proposed
                self._optuna.tell(trial.number, state=TrialState.FAIL)
                if point := trial.system_attrs.get("fixed_params"):
                    self._optuna.enqueue_trial(point)
                continue
            status = None if run_id is None else self._job_status(run_id)
            if status is None and run_id is not None and self._is_elsewhere(run_id):
                status = self._restore(run_id, is_given_up=REASON in trial.user_attrs)
                if status.state.is_final:
                    run = Run(run_id, self.study.workspace, Job(run_id, self.engine))
                    self._add(live, run, self._free_slot(), trial.user_attrs.get(REASON, ""))
                    self._conclude(self._running[-1], status)
                    continue
            if status is None:  # killed before the job was started
                self._start(live, values, self._unused(run_id))
                continue
            assert run_id is not None
            if _can_continue(status) and not trial.user_attrs.get(REASON):
                resume_job(self.study.workspace, self.engine, run_id)
            run = Run(run_id, self.study.workspace, Job(run_id, self.engine))
            stopped_by = trial.user_attrs.get(REASON, "")
            if stopped_by and not status.state.is_final:  # killed before the job was stopped
                run.job.stop()
            self._add(live, run, self._free_slot(), stopped_by)
            self._publish("continued", trial.number, params=values, run=run_id)

    def _job_status(self, run_id: str) -> JobStatus | None:
        try:
            return self.engine.status(run_id)
        except NotFoundError:
            return None

    def _is_elsewhere(self, run_id: str) -> bool:
        """Return whether a job that this machine does not know may be one of another machine."""
        workspace = self.study.workspace
        if not self.engine.shares_machine or workspace.local_copy is None:
            return False
        with contextlib.suppress(NotFoundError):
            read_run(workspace, run_id)
            return True
        return False

    def _restore(self, run_id: str, *, is_given_up: bool) -> JobStatus:
        """Return the status of a job of another machine; continue it here if it has not ended."""
        workspace = self.study.workspace
        status = status_of(read_run(workspace, run_id))
        if status.state.is_final and (is_given_up or not _can_continue(status)):
            return status
        return restore_job(workspace, run_id).status()

    def _propose(self) -> tuple[optuna.Trial, dict[str, Value]]:
        """Return a new trial and its values."""
        trial = self._optuna.ask()
        values = self._space.suggest(trial)
        violated = self._space.violated(values)
        if violated is not None:
            self._results.fail(trial, "infeasible", f"the constraint {violated!r} does not hold")
            raise SpecError(
                f"found no values that satisfy {violated!r}",
                hint="change the ranges so that more of them do",
            )
        trial.set_user_attr(VALUES, values)
        return trial, values

    def _unused(self, run_id: str | None) -> str | None:
        """Return a run ID that has no record yet, or None; close the record otherwise."""
        if run_id is None:
            return None
        try:
            read_run(self.study.workspace, run_id)
        except NotFoundError:
            return run_id
        with contextlib.suppress(NotFoundError):
            open_run(self.study.workspace, run_id).finish(
                "failed", "its job was never started", "engine"
            )
        return None

    def _start(
        self, trial: optuna.Trial, values: Mapping[str, Value], run_id: str | None = None
    ) -> None:
        run_id = run_id or new_run_id("train")
        # Stored first: a controller that is killed now starts no second job for these values.
        trial.set_user_attr(RUN, run_id)
        self._check_lease()
        self.study.push()
        slot = self._free_slot()
        self._add(trial, self.submit(values, run_id, slot), slot)
        self._publish("started", trial.number, params=values, run=run_id)

    def _free_slot(self) -> int:
        used = {running.slot for running in self._running}
        return next(slot for slot in range(len(used) + 1) if slot not in used)

    def _add(self, trial: optuna.Trial, run: Run, slot: int, stopped_by: str = "") -> None:
        settings = self.study.settings
        needed = [objective.metric for objective in settings.objectives]
        needed += [threshold.metric for threshold in settings.thresholds]
        metrics = tuple(dict.fromkeys(needed))
        workspace = self.study.workspace
        scalars = self._scalars(run)
        curves = LearningCurves(workspace.runs / run.id / FILE_NAME, metrics, scalars)
        self._running.append(_Running(trial, slot, run, curves, stopped_by=stopped_by))

    def _scalars(self, run: Run) -> ScalarReader:
        if not isinstance(self.engine, FileFetchingEngine):
            return ScalarReader(self.study.workspace.jobs / run.id, run.id)
        engine, copies = self.engine, self.study.folder / "scalars" / run.id
        return ScalarReader(copies, run.id, lambda: engine.fetch(run.id, copies, has_scalars))

    def _follow(self) -> None:
        """Read the curves of running trials; stop or end those that are due."""
        for running in list(self._running):
            try:
                status = running.run.job.status()
            except NotFoundError:
                self._results.fail(running.trial, "failed", "its job was deleted")
                self._running.remove(running)
                continue
            # After the status, so that the last values are included.
            running.run.pull()
            if status.state.is_final and self._is_complete(running):
                self._conclude(running, status)
                continue
            running.curves.read()
            self._report(running)
            self._warn(running)
            if status.state.is_final:
                continue
            if self.rule is not None and not running.stopped_by:
                self._apply_rule(running, self.rule)

    def _is_complete(self, running: _Running) -> bool:
        """Return whether the record of an ended job has arrived, or is not to be waited for."""
        if self.engine.shares_machine:
            return True
        now = time.monotonic()
        running.ended_at = running.ended_at or now
        if read_run(self.study.workspace, running.run.id).is_finished:
            return True
        if now - running.ended_at < _RECORD_S:
            return False
        _logger.warning("the record of %s in the bucket has no end", running.run.id)
        return True

    def _conclude(self, running: _Running, status: JobStatus) -> None:
        """Record the result of a trial whose job has ended."""
        running.curves.read(is_final=True)
        self._report(running)
        self._warn(running)
        try:
            self._results.record(
                running.trial, running.curves, status, running.run, running.stopped_by
            )
        finally:
            self._is_changed = True
        self._running.remove(running)
        shutil.rmtree(self.study.folder / "scalars" / running.run.id, ignore_errors=True)

    def _warn(self, running: _Running) -> None:
        """Pass on what a run warned of, once for all trials."""
        for message in running.curves.warnings:
            if message not in self._warned:
                self._warned.add(message)
                self._publish("warning", running.trial.number, message=message)
        running.curves.warnings.clear()

    def _report(self, running: _Running) -> None:
        first = self.study.settings.objectives[0]
        curve = running.curves.curves[first.metric]
        if len(curve) == running.reported:
            return
        # A job that restarted repeats steps; Optuna keeps the first value of a step.
        known = running.trial.storage.get_trial(running.trial._trial_id).intermediate_values
        for step, value in curve[min(running.reported, len(curve)) :]:
            is_stored = 0 <= step <= _LAST_STEP and len(self.study.settings.objectives) == 1
            if is_stored and step not in known:
                running.trial.report(value, step)
            self._publish("progress", running.trial.number, step=step, value=value)
        running.reported = len(curve)

    def _apply_rule(self, running: _Running, rule: StoppingRule) -> None:
        metric = self.study.settings.objectives[0].metric
        curve = running.curves.curves[metric]
        others = [other.curves.curves[metric] for other in self._running if other is not running]
        # An infeasible trial must not set the value to beat.
        trials = [
            trial
            for trial in self._optuna.get_trials(deepcopy=False, states=WITH_RESULT)
            if not is_infeasible(trial)
        ]
        compared = (len(curve), len(trials), *map(len, others))
        # The same curves give the same decision, and some rules take milliseconds.
        if not curve or compared == running.compared:
            return
        running.compared = compared
        ended = [tuple(sorted(trial.intermediate_values.items())) for trial in trials]
        if rule.should_stop(curve, ended, others):
            running.stopped_by = (
                f"stopped early at step {curve[-1][0]} "
                f"by {self.study.settings.options['stopping_rule']}"
            )
            running.trial.set_user_attr(REASON, running.stopped_by)
            self.study.push()
            running.run.job.stop()

    def _limit(self) -> str | None:
        """Return the limit that allows no further trial, in words, or None."""
        settings = self.study.settings
        jobs = [trial for trial in self.study.records(self._optuna) if trial.run_id]
        failed = [trial for trial in jobs if trial.status == "failed"]
        if (
            len(failed) >= _FAILURES_AT_START
            and not self._results.succeeded()
            and not settings.options["max_failed"]
        ):
            raise UserCodeError(
                f"the first {len(failed)} trials failed; the last one: {failed[-1].reason}",
                hint=f"'timonel logs {failed[-1].run_id}' shows the output of its tasks",
            )
        if self.sampler.size is not None and len(jobs) >= self.sampler.size:
            return f"all {self.sampler.size} points of the grid have run"
        elapsed_s = time.time() - settings.created_at
        return settings.limits.reached(jobs, settings.objectives[0], elapsed_s)

    def _stop_all(self) -> None:
        """Stop the jobs; their trials stay running, so that `run` can continue them."""
        for running in self._running:
            running.run.job.stop()
        for running in self._running:
            running.run.job.wait()


def _can_continue(status: JobStatus) -> bool:
    """Return whether a job ended for a reason outside its trial."""
    # A controller that is killed while it starts a job takes the job's supervisor with it.
    return status.state is JobState.STOPPED or (
        status.state is JobState.FAILED and status.cause is FailureCause.ENGINE
    )
