"""Private names of TensorFlow and Keras that parameter servers rely on.

A step must have no side effects: its worker may be lost, or its gradient dropped. So state that a
step changes besides its gradients (metrics, moving averages, counters) gets another handle while
the step is traced: that of a variable that lives for one call of the step.

A test pins the names used here, so that an incompatible release fails there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from timonel.training.worker.private import hidden_state
from timonel.training.worker.private.attributes import replaced, wrap

_SEED_STATE = "seed_generator_state"
"""Name of the state of Keras 3's random generators."""


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a Keras 3 random generator."""
    return _SEED_STATE in variable.name


def as_scheduled(strategy: Any) -> contextlib.AbstractContextManager[None]:
    """Trace as if scheduled on a worker, to suppress TensorFlow's warning."""
    return replaced(strategy.extended, _being_scheduled=True)


def watch_unscheduled(strategy: Any, warn: Callable[[], object]) -> None:
    """Call ``warn`` at the first ``strategy.run`` outside a worker."""
    warned: list[bool] = []

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not warned and not strategy.extended._being_scheduled:
            warned.append(True)
            warn()
        return original(*args, **kwargs)

    wrap(strategy, "run", run)


def raw(variable: Any) -> Any:
    """Return the TensorFlow variable inside wrappers of Keras and of the strategy."""
    return [None, *hidden_state.wrapped(variable)][-1]


def make_later_within(variable: Any, place: Callable[[], Any]) -> None:
    """Create a variable in the context from ``place``, also if Keras 3 defers it."""
    # It does so for metrics whose shape is known only once a model is built symbolically.
    original = getattr(variable, "_deferred_initialize", None)
    if original is None or getattr(variable, "_value", None) is not None:
        return

    def initialize() -> None:
        del variable.__dict__["_deferred_initialize"]
        with place():
            original()

    variable.__dict__["_deferred_initialize"] = initialize


@contextlib.contextmanager
def noting_results(model: Any, noted: list[tuple[Any, Any, str | None]]) -> Iterator[None]:
    """Record each result of a model's metrics with its metric, and its key in a dict."""

    def noting(metric: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def result(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            parts = found.items() if isinstance(found, dict) else [(None, found)]
            noted.extend((value, metric, key) for key, value in parts)
            return found

        return result

    with contextlib.ExitStack() as stack:
        for metric in model.metrics:
            stack.enter_context(replaced(metric, result=noting(metric, metric.result)))
        yield


@contextlib.contextmanager
def handles(replacements: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Replace handles of raw variables while a function is traced."""
    with contextlib.ExitStack() as stack:
        for variable, handle in replacements:
            stack.enter_context(replaced(variable, _handle=handle))
        yield


def temporary(dtype: Any, shape: Any) -> Any:
    """Return the handle of a variable that is created each time the traced function runs."""
    return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=context.anonymous_name())


def run_on_workers(coordinator: Any, function: Callable[[], Any], count: int) -> None:
    """Call a Python function ``count`` times in the threads of free workers."""
    # Its operations run on that worker. If the worker is lost, the function raises and is called
    # again once a worker is free. The coordinator's public ``schedule`` accepts traced functions
    # only.
    for _ in range(count):
        coordinator._cluster.schedule(function, (), {})


def worker_index() -> int:
    """Return the worker index of the coordinator's current thread."""
    return int(coordinator_context.get_current_dispatch_context().worker_index)


@contextlib.contextmanager
def outside_scope() -> Iterator[None]:
    """Leave all strategy scopes within the block, for work local to this process."""
    # What watches the variables of the process stays: it was entered last.
    graph = ops.get_default_graph()
    strategies, creators = graph._distribution_strategy_stack, graph._variable_creator_stack
    owners = [getattr(creator, "__self__", None) for _, creator in creators]
    watching = [
        each for each, owner in zip(creators, owners, strict=True) if hasattr(owner, "watched")
    ]
    graph._distribution_strategy_stack, graph._variable_creator_stack = [], watching
    try:
        yield
    finally:
        graph._distribution_strategy_stack, graph._variable_creator_stack = strategies, creators


@contextlib.contextmanager
def inside_scope(strategy: Any) -> Iterator[None]:
    """Enter the scope of ``strategy``, even within another strategy's scope."""
    with outside_scope(), strategy.scope(), as_scheduled(strategy):
        yield


@contextlib.contextmanager
def detached(model: Any) -> Iterator[None]:
    """Run a model in this process alone, with its variables in place."""
    with replaced(model, **{strategy_attribute(model): None}), outside_scope():
        yield


def strategy_attribute(model: Any) -> str:
    """Return the attribute in which a model keeps its strategy."""
    return "_distribute_strategy" if hasattr(model, "_symbolic_build") else "_distribution_strategy"


def place_variables(strategy: Any, is_local: Callable[[Any], bool], device: str) -> None:
    """Place variables whose shape ``is_local`` on ``device``, others on parameter servers."""
    # Each goes to the parameter server with the least data: with TensorFlow's round-robin
    # placement, all large variables may end up on the same server.
    extended = strategy.extended
    original = extended._create_variable
    held = dict.fromkeys(range(extended._num_ps), 0)

    def spread(next_creator: Callable[..., Any], **options: Any) -> Any:
        extended._variable_count = min(held, key=held.__getitem__)
        made = original(next_creator, **options)
        # Optimizer slots are colocated with their variable in any case.
        task = tf.DeviceSpec.from_string(made.device).task
        held[task] += made.dtype.size * (made.shape.num_elements() or 0)
        return made

    def create(next_creator: Callable[..., Any], **options: Any) -> Any:
        shape = options.get("shape")
        if shape is None:
            value = options.get("initial_value")
            value = value() if callable(value) else value
            value = tf.convert_to_tensor(value, options.get("dtype"))
            options["initial_value"], shape = value, value.shape
        if not is_local(tf.TensorShape(shape)):
            return spread(next_creator, **options)
        options.pop("aggregation", None)
        options.pop("synchronization", None)
        with tf.device(None), tf.device(device):
            return next_creator(**options)

    extended._create_variable = create


def as_one_replica(strategy: Any) -> contextlib.AbstractContextManager[None]:
    """Let an optimizer update variables within conditions, as if on one replica."""
    # Keras 3 updates within conditions (gradient accumulation, moving averages of weights), where
    # this strategy cannot merge its replicas. It has only one, so nothing needs merging.
    extended = strategy.extended

    def update(
        variable: Any,
        function: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return extended._update(raw(variable), function, args, kwargs or {}, group)

    return replaced(
        extended,
        _use_merge_call=lambda: False,
        _replica_ctx_all_reduce=lambda _, value, *__: value,
        update=update,
    )


def build_compiled(model: Any, x: Any, y: Any, sample_weight: Any) -> None:
    """Build layers, loss and metrics from a batch, without training; metrics keep their values."""
    if hasattr(model, "_symbolic_build"):  # Keras 3
        batch = (x, y) if sample_weight is None else (x, y, sample_weight)
        hidden_state.build_symbolically(model, batch)
    elif y is not None:
        hidden_state.build_tf_keras_metrics(model, x, y)
    else:
        model(x, training=False)


def leave_out_unused_loss(model: Any, used: Container[int]) -> None:
    """Remove tf-keras' loss metric if the step does not update it."""
    # Otherwise ``fit`` would show this metric, 0, instead of the loss that the step returns.
    # ``used`` are IDs of the variables, as of `raw`, that the step changes.
    loss = getattr(model, "compiled_loss", None)
    if loss is None or train_counter(model) is None:
        return
    variables = [variable for metric in loss.metrics for variable in metric.variables]
    if not any(id(raw(variable)) in used for variable in variables):
        loss._built = False


def steps_per_execution(model: Any) -> int:
    """Return the number of steps per call of a model's train function."""
    found: Any = getattr(model, "steps_per_execution", None)
    if found is None:  # tf-keras
        found = model._steps_per_execution
    return max(1, int(found.numpy() if hasattr(found, "numpy") else found or 1))


def whole_executions(model: Any, steps: int) -> int:
    """Round ``steps`` up to whole executions, as Keras 3's ``fit`` does."""
    at_once = 1 if train_counter(model) is not None else steps_per_execution(model)
    return -(-steps // at_once) * at_once


def train_counter(model: Any) -> Any:
    """Return tf-keras' step counter of a model, which its callbacks read; None in Keras 3."""
    return getattr(model, "_train_counter", None)
