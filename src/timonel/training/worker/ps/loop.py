"""``fit``, ``evaluate`` and ``predict`` of a model with parameter servers.

``fit`` and ``evaluate`` are Keras' own, run as in one process, with steps computed by workers.
``predict`` runs in the chief, which reads the variables from the parameter servers.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.settings import Settings
from timonel.training.worker.fit.model_fit import replace_method
from timonel.training.worker.fit.watch import FitWatch
from timonel.training.worker.private import losses, mid_epoch, ps_variables, row_means
from timonel.training.worker.private.attributes import replaced
from timonel.training.worker.ps.dispatcher import Dispatcher, Observe
from timonel.training.worker.ps.feeding import Horizon, LoopPhase
from timonel.training.worker.ps.ledger import Ledger, Policy, Tally
from timonel.training.worker.ps.preflight import (
    check_model,
    check_precision,
    describe,
    parts_of_batches,
    policy_of,
    summarize,
)
from timonel.training.worker.state import callback_state

logger = logging.getLogger(__name__)

SETTLE_S = 2.0
"""Approximate interval between pauses in asynchronous runs, for saving or stopping."""

UNSCHEDULED = (
    "The training loop runs in the chief and the workers stay idle: strategy.run was called "
    "without the coordinator. Send each step to a worker with "
    "context().coordinator.schedule(train_step, args=batch)."
)
"""Warning for scripts that call ``strategy.run`` without the coordinator."""

_names = itertools.count()


@dataclass(eq=False)
class ParameterServerLoop:
    """Trains and evaluates models with workers. Used only by the script's thread."""

    keras: Any  # its ``fit`` must not be patched yet
    strategy: Any
    coordinator: Any
    settings: Settings
    _: KW_ONLY
    workers: int
    is_asked: Callable[[], bool] = lambda: False  # whether the job was asked to save or stop
    tell: Callable[[str], object] = lambda _: None
    observe: Observe = lambda *_: None  # of each computed part's worker and duration in seconds
    tally: Tally = field(default_factory=Tally)
    _evaluating: dict[int, tuple[Any, LoopPhase]] = field(default_factory=dict)
    _training: Any = None  # the model
    _dispatcher: Dispatcher | None = None
    _compiled: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        self._fit = self.keras.Model.fit
        self.parts = parts_of_batches(self.settings, self.workers)
        seconds = self.settings.checkpoints.checkpoint_seconds
        self._settle_s = SETTLE_S if seconds is None else min(SETTLE_S, float(seconds))

    def install(self, warn: row_means.Warn = logger.warning) -> None:
        """Patch ``compile``, ``evaluate`` and ``predict`` of this process's Keras."""
        check_precision(self.keras, self.settings)
        losses.install_functions(self.keras, warn)
        ours = {"compile": self._compile, "evaluate": self._evaluate, "predict": self._predict}
        for name, call in ours.items():
            # Patch the defining class: Keras does not compile a loaded model whose class seems to
            # override compile().
            owner = next(kind for kind in self.keras.Model.__mro__ if name in vars(kind))
            replace_method(owner, name, call)

    def fit(self, model: Any, arguments: dict[str, Any], watch: FitWatch) -> Any:
        """Train and return the ``History``; see `managed_fit.Fits`."""
        check_model(self.keras, model, is_compiled=model in self._compiled)
        described = describe(self.settings, self.workers)
        logger.info("%s", described)
        if self.settings.parameter_servers.backup_workers is None:
            self.tell(described)
        with self._serving() as dispatcher, ps_variables.detached(model):
            phase = self._phase(model, dispatcher, training=True)
            self._training = model
            watch.report_beside(dispatcher.ledger.tally.metrics)
            callback_state.add(arguments, self._follower(phase, watch))
            try:
                with (
                    _function(model, "train", self._stepping(model, phase)),
                    self._testing(model, dispatcher),
                    mid_epoch.entering(self.keras),
                    mid_epoch.stepping(model, self._boundary(phase, watch)),
                ):
                    return self._fit(model, **arguments)
            finally:
                self._training = None
                self._report(dispatcher.ledger.tally)

    def _boundary(self, phase: LoopPhase, watch: FitWatch) -> Callable[[], None]:
        last = [time.monotonic()]

        def before_step() -> None:
            if phase.is_settled:
                watch.step_boundary()
                last[0], phase.is_settling = time.monotonic(), False
            elif self.is_asked() or time.monotonic() - last[0] >= self._settle_s:
                phase.is_settling = True

        return before_step

    def _follower(self, phase: LoopPhase, watch: FitWatch) -> Any:
        first_steps = [watch.first_step]  # of the first epoch only

        def epoch_begins(callback: Any, epoch: int, _logs: Any) -> None:
            begun = first_steps.pop() if first_steps else 0
            steps = callback.params.get("steps")
            if steps is not None:
                steps = ps_variables.whole_executions(callback.model, steps) - begun
            every = self.settings.checkpoints.checkpoint_steps
            horizon = Horizon(steps, every, watch.trained)
            phase.begin(horizon, policy_of(self.settings, self.workers, epoch))

        return callback_state.callback_of(self.keras, on_epoch_begin=epoch_begins)

    def _compile(self, original: Callable[..., Any], model: Any, arguments: Any) -> Any:
        if model is self._training:
            raise TimonelError(
                "parameter servers do not support compile() inside a callback of fit",
                hint="call fit twice, with compile() in between, or train with --workers "
                "without --ps",
            )
        # Keras 3 does not record whether XLA was requested explicitly or chosen automatically.
        (self._compiled.add if arguments.get("jit_compile") is True else self._compiled.discard)(
            model
        )
        return original(**arguments)

    def _evaluate(self, original: Callable[..., Any], model: Any, arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            dispatcher = self._dispatcher or stack.enter_context(self._serving())
            if id(model) not in self._evaluating:  # otherwise Keras validates within fit
                stack.enter_context(ps_variables.detached(model))
                stack.enter_context(self._testing(model, dispatcher))
            self._begin_evaluation(model, arguments)
            return original(**arguments)

    def _predict(self, original: Callable[..., Any], model: Any, arguments: Any) -> Any:
        with ps_variables.as_scheduled(self.strategy), ps_variables.detached(model):
            return original(**arguments)

    def _begin_evaluation(self, model: Any, arguments: Mapping[str, Any]) -> None:
        steps = arguments.get("steps")
        x: Any = arguments.get("x")
        if steps is None and hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end"):
            steps = len(x)  # a sequence of batches, over which Keras would iterate forever
        _, phase = self._evaluating[id(model)]
        phase.begin(Horizon(steps=steps), Policy())

    @contextlib.contextmanager
    def _testing(self, model: Any, dispatcher: Dispatcher) -> Iterator[None]:
        phase = self._phase(model, dispatcher, training=False)
        self._evaluating[id(model)] = model, phase
        try:
            with _function(model, "test", self._stepping(model, phase)):
                yield
        finally:
            del self._evaluating[id(model)]

    def _phase(self, model: Any, dispatcher: Dispatcher, *, training: bool) -> LoopPhase:
        return LoopPhase(
            model,
            self.strategy,
            dispatcher,
            self.workers,
            training=training,
            divides=training and self.parts > 1,
            name=f"timonel-{next(_names)}",
        )

    def _stepping(self, model: Any, phase: LoopPhase) -> Callable[[Any], Any]:
        def step(iterator: Any) -> Any:
            logs = phase.step(iterator, self.coordinator.done)
            for _ in range(ps_variables.steps_per_execution(model) - 1):
                try:
                    logs = phase.step(iterator, self.coordinator.done)
                except tf.errors.OutOfRangeError:
                    break
            return logs

        return step

    @contextlib.contextmanager
    def _serving(self) -> Iterator[Dispatcher]:
        """Run a dispatcher whose pieces the workers compute, within the block."""
        dispatcher = Dispatcher(Ledger(), observe=self.observe)
        self._dispatcher = dispatcher
        ps_variables.run_on_workers(self.coordinator, dispatcher.serve, self.workers)
        try:
            yield dispatcher
        finally:
            self._dispatcher = None
            dispatcher.close()

    def _report(self, tally: Tally) -> None:
        self.tally = tally
        logger.info(
            "%d updates, staleness %.2f on average and %d at most; %d gradients dropped, "
            "%d computed twice, %d lost with their worker",
            tally.updates,
            tally.staleness_mean,
            tally.staleness_max,
            tally.dropped,
            tally.repeated,
            tally.lost,
        )
        summary = summarize(self.settings, tally)
        if summary is not None:
            self.tell(summary)


@contextlib.contextmanager
def localised(model: Any) -> Iterator[None]:
    """Copy a model's variables into this process during an export."""
    with ps_variables.detached(model):
        found = {id(variable): variable for variable in map(ps_variables.raw, model.variables)}
        remote = [variable for variable in found.values() if "/job:ps" in variable.device]
        copies = [tf.Variable(variable.read_value()) for variable in remote]
        with ps_variables.handles(zip(remote, [copy.handle for copy in copies], strict=True)):
            yield


def _function(
    model: Any, name: str, function: Callable[[Any], Any]
) -> contextlib.AbstractContextManager[None]:
    """Replace a model's train or test function within the block."""

    def make(*_: Any, **__: Any) -> Callable[[Any], Any]:
        setattr(model, f"{name}_function", function)
        return function

    return replaced(model, **{f"make_{name}_function": make, f"{name}_function": None})
