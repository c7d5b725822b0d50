"""Profile a range of steps of the first ``fit`` call, for TensorBoard.

A profile covers exactly the requested steps, from before the first to the end of the last, or is
not written. Every training task writes one under its own name into a folder of the job; TensorBoard
shows them as hosts of one run.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.errors import SpecError
from timonel.storage import write_bytes
from timonel.training.option_values import StepRange
from timonel.training.worker.private import ps_variables
from timonel.training.worker.state.callback_state import callback_of

logger = logging.getLogger(__name__)


@dataclass
class StepCount:
    """Numbers the steps of a call through its epochs."""

    initial_epoch: int  # of the call, as the script made it
    epoch: int = 0
    before: int | None = None  # steps of earlier epochs; None if unknown
    last: int = 0  # number of the last completed step
    has_begun: bool = False

    def begin(self, batch: int, params: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the total and the completed number of steps; None where unknown."""
        self.has_begun = True
        steps, earlier = params.get("steps"), self.epoch - self.initial_epoch
        if self.before is None and (steps is not None or not earlier):
            self.before = earlier * (steps or 0)
        total = None if steps is None else steps * (params["epochs"] - self.initial_epoch)
        return total, None if self.before is None else self.before + batch

    def at(self, batch: int) -> int:
        """Return the step number of a batch, which Keras counts from 0."""
        return (self.before or 0) + batch + 1


_LAYOUT = Path("plugins", "profile")
"""TensorBoard's layout: ``<logdir>/plugins/profile/<name>/<host>.xplane.pb``."""
_ENDING = ".xplane.pb"
_COLLECTING = "collecting"
"""File that exists while TensorFlow collects the trace."""

Tell = Callable[[str, dict[str, Any]], None]


@dataclass(eq=False)
class Profiler:
    """Profiles steps of a ``fit`` call. Used by the training thread."""

    steps: StepRange
    logdir: Path
    host: str  # this task's name in TensorBoard
    _: KW_ONLY
    scratch: Path
    tell: Tell  # gets a message, and the profile's fields if there is one
    marks_steps: bool = True  # false if others mark step boundaries in the profile
    _is_running: bool = False
    _trace: Any = None
    _is_over: bool = False

    def begins(self, total: int | None, per_call: int, done: int | None) -> None:
        """Check the call's steps before the first one.

        ``per_call`` are the steps per execution, ``done`` those of earlier generations, None if
        unknown.
        """
        first, last = self.steps.first, self.steps.last
        if (first - 1) % per_call or last % per_call:
            raise SpecError(
                f"The model runs {per_call} steps at once, but --profile {first}:{last} splits "
                "such a group",
                hint=f"for example --profile {per_call + 1}:{2 * per_call}",
            )
        if total is not None and last > total:
            raise SpecError(
                f"--profile {first}:{last} exceeds the {total} steps of the call",
                hint="choose a smaller range",
            )
        if done is None or done >= first:
            self._is_over = True
            if not self._path.exists():
                at = "a step of unknown number" if done is None else f"step {done}"
                self._give_up(f"training went on after {at}")

    def step_begins(self, step: int) -> None:
        """Record the start of a step."""
        if self._is_over:
            return
        if step == self.steps.first:
            self._start()
        # If others mark steps, these two are still open when the profile starts and ends.
        if self._is_running and (self.marks_steps or step in {self.steps.first, self.steps.last}):
            # TensorBoard takes step boundaries from these.
            self._trace = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
            self._trace.__enter__()

    def step_ends(self, step: int, finish: Callable[[], object]) -> None:
        """Record the end of a step; ``finish`` waits until the device has completed it."""
        if not self._is_running:
            return
        if step >= self.steps.last:
            finish()
        self._unmark()
        if step >= self.steps.last:
            self._save()

    def ends(self) -> None:
        """Record the end of the call, complete or not."""
        if self._is_over:
            return
        if self._is_running:
            self._unmark()
            with contextlib.suppress(tf.errors.OpError):
                tf.profiler.experimental.stop(save=False)
            self._forget()
        self._give_up("training ended before")

    @property
    def _path(self) -> Path:
        name = f"steps_{self.steps.first}_to_{self.steps.last}"
        return self.logdir / _LAYOUT / name / f"{self.host}{_ENDING}"

    def _start(self) -> None:
        # In a worker other than the first, TensorFlow can crash when it merges the two ends of an
        # event that began in one thread and ended in another (`SplitEventTracker`). So try only
        # once.
        if (self.scratch / _COLLECTING).exists():
            self._give_up("TensorFlow has crashed when it collected them")
            return
        self._forget()  # of a task that was killed while profiling
        try:
            tf.profiler.experimental.start(str(self.scratch))
        except tf.errors.AlreadyExistsError:
            self._give_up("the script profiles by itself")
            return
        self._is_running = True

    def _unmark(self) -> None:
        if self._trace is not None:
            self._trace.__exit__(None, None, None)
            self._trace = None

    def _save(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        (self.scratch / _COLLECTING).touch()
        tf.profiler.experimental.stop()
        (made,) = self.scratch.rglob(f"*{_ENDING}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path, made.read_bytes())
        self._forget()
        self._is_over = True
        self.tell(
            f"profiled steps {self.steps.first} to {self.steps.last}",
            {
                "first_step": self.steps.first,
                "last_step": self.steps.last,
                "path": str(self._path),
                "logdir": str(self.logdir),
            },
        )

    def _forget(self) -> None:
        self._is_running = False
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _give_up(self, why: str) -> None:
        self._is_over = True
        self.tell(f"no profile of steps {self.steps.first} to {self.steps.last}: {why}", {})


def callback_for(keras: Any, profiler: Profiler, initial_epoch: int) -> Any:
    """Return a callback of ``keras`` that profiles steps."""
    count = StepCount(initial_epoch)

    def step_begins(callback: Any, batch: int, _logs: Any) -> None:
        if not count.has_begun:
            total, done = count.begin(batch, callback.params)
            profiler.begins(total, ps_variables.steps_per_execution(callback.model), done)
        profiler.step_begins(count.at(batch))

    def step_ends(_callback: Any, batch: int, logs: Any) -> None:
        count.last = count.at(batch)
        # Reading the values waits for the step.
        profiler.step_ends(count.last, lambda: [np.asarray(v) for v in (logs or {}).values()])

    return callback_of(
        keras,
        is_async_safe=False,  # Keras waits for it: a profiled step starts after the profile does
        on_epoch_begin=lambda _, epoch, __: setattr(count, "epoch", epoch),
        on_train_batch_begin=step_begins,
        on_train_batch_end=step_ends,
        on_epoch_end=lambda *_: setattr(count, "before", count.last),
        on_train_end=lambda *_: profiler.ends(),
        get_state=lambda _: {"before": count.before},
        set_state=lambda _, state: setattr(count, "before", state["before"]),
    )
