"""Trace a model's train step without side effects on its variables.

The step is traced once and sent to the workers. In it the optimizer records its gradients instead
of applying them, and other assignments go to temporary variables, whose changes become part of the
result. So an attempt may be lost, repeated or dropped at any moment, and the model's own
``train_step`` needs no changes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.errors import SpecError, TimonelError
from timonel.models.keras_model import is_without_call
from timonel.training.worker.inputs.fit_data import any_rows, unpack
from timonel.training.worker.private import metric_sums, ps_variables, row_means
from timonel.training.worker.private.attributes import replaced
from timonel.training.worker.ps.gradient_buffers import StagedGradient, stage
from timonel.training.worker.ps.refusals import READS, refuse_python, refuse_writes
from timonel.training.worker.ps.states import StepState, begin, change_of, states_of


@dataclass(frozen=True)
class TracedStep:
    """A traced step.

    ``function`` takes a batch's tensors, the numbers of batch and part, the attempt's number, and
    the part's share of the rows; it returns one float64 vector: the changes of states, then the
    logs.
    """

    function: Any
    sent: tuple[StepState, ...]  # the states in the vector, in order
    log_names: tuple[str, ...]  # of all logs
    values: Mapping[str, tuple[int, ...]]  # shapes of the logs in the vector, by name
    entries: Mapping[str, tuple[StagedGradient, ...]]  # staged on the parameter servers, by device
    optimizer: Any  # of the staged gradients; None in evaluation
    variables: tuple[Any, ...]
    metrics: Mapping[str, tuple[Any, str | None]] = field(default_factory=dict)


def build(model: Any, strategy: Any, batch: Any, *, training: bool) -> None:
    """Create all variables before tracing: of model, optimizer, loss and metrics."""
    x, y, sample_weight = unpack(batch)
    with ps_variables.inside_scope(strategy):
        if not is_without_call(model):
            ps_variables.build_compiled(model, x, y, sample_weight)
        optimizer = getattr(model, "optimizer", None)
        if training and optimizer is not None and not getattr(optimizer, "built", False):
            optimizer.build(model.trainable_variables)


def trace(
    model: Any, strategy: Any, batch: Any, *, training: bool, name: str, divides: bool = False
) -> TracedStep:
    """Trace a model's ``train_step`` or ``test_step`` for any batch size."""
    traced_for = functools.partial(
        _traced, model, strategy, batch, training=training, name=name, divides=divides
    )
    with ps_variables.inside_scope(strategy):
        candidates = states_of(model)
        assigned = _assigned(*traced_for(candidates))
        states = [state for state in candidates if id(state.variable) in assigned]
        ps_variables.leave_out_unused_loss(model, assigned)
        traced, _ = traced_for(states)
    refuse_python(traced.function.graph)
    refuse_writes(traced.function.graph, {id(ps_variables.raw(v)): v for v in model.variables})
    return traced


def _traced(
    model: Any,
    strategy: Any,
    batch: Any,
    states: Sequence[StepState],
    *,
    training: bool,
    name: str,
    divides: bool,
) -> tuple[TracedStep, dict[int, Any]]:
    """Return the step, and the handles of its temporary variables by the IDs of its states'."""
    recorded: list[tuple[Any, list[tuple[Any, Any]]]] = []
    temporary: dict[int, Any] = {}
    found: dict[str, Any] = {}

    def compute(tensors: Any, draw: Any, attempt: Any, share: Any) -> Any:
        recorded.clear()
        rows = tf.shape(tf.nest.flatten(tensors)[0])[0]
        begun = [(state, *begin(state, draw)) for state in states]
        temporary.update({id(state.variable): handle for state, handle, _ in begun})
        noted: list[tuple[Any, Any, str | None]] = []

        def step(data: Any) -> Any:  # the strategy runs it in another thread
            with _part_of(share, rows) if divides else contextlib.nullcontext():
                return (model.train_step if training else model.test_step)(data)

        with (
            ps_variables.handles([(state.variable, handle) for state, handle, _ in begun]),
            ps_variables.noting_results(model, noted),
            _recording(model, recorded if training else []),
            metric_sums.required(functools.partial(_metrics_of, model)),
        ):
            logs = dict(_flat(strategy.run(step, args=(tensors,)) or {}))
        results = {id(value): (metric, key) for value, metric, key in noted}
        # They may have any name in the logs.
        found["metrics"] = {
            name: results[id(value)] for name, value in logs.items() if id(value) in results
        }
        changes = [(state, change_of(state, *since)) for state, *since in begun]
        with tf.control_dependencies([change for _, change in changes]):
            for _, handle, _ in begun:
                tf.raw_ops.DestroyResourceOp(resource=handle)
        return _result(found, changes, recorded, logs, attempt=attempt, name=name)

    numbers = tf.TensorSpec((2,), tf.int64), tf.TensorSpec((), tf.int64)
    spec = (tf.nest.map_structure(any_rows, batch), *numbers, tf.TensorSpec((), tf.float32))
    function = tf.function(compute, autograph=False).get_concrete_function(*spec)
    return TracedStep(function=function, **found), temporary


@contextlib.contextmanager
def _part_of(share: Any, rows: Any) -> Iterator[None]:
    """Trace a step for a part of a batch; refuse losses of rows, as gradients are averaged."""
    original = tf.GradientTape.gradient

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        is_of_model = any(not isinstance(each, tf.Tensor) for each in tf.nest.flatten(sources))
        if is_of_model and isinstance(target, tf.Tensor) and target.shape.rank:
            raise SpecError(
                "parts of a batch do not give the gradient of a loss with a value per row",
                hint="take the mean of the loss in train_step, or train without --ps",
            )
        return original(tape, target, sources, *args, **kwargs)

    with row_means.part_of(share, rows), replaced(tf.GradientTape, gradient=gradient):
        yield


def _result(
    found: dict[str, Any],
    changes: Sequence[tuple[StepState, Any]],
    recorded: Sequence[tuple[Any, list[tuple[Any, Any]]]],
    logs: Mapping[str, Any],
    *,
    attempt: Any,
    name: str,
) -> Any:
    """Stage entries on the parameter servers; return and describe the other values."""
    if len(recorded) > 1:
        raise TimonelError(
            f"train_step applies gradients {len(recorded)} times; parameter servers support only "
            "one time",
            hint="train it with --strategy multi-worker, or write your own loop with "
            "timonel.training.context().coordinator",
        )
    optimizer, pairs = recorded[0] if recorded else (None, [])
    variables = tuple(variable for _, variable in pairs)
    entries = [
        StagedGradient.of(place, gradient, ps_variables.raw(variable))
        for place, (gradient, variable) in enumerate(pairs)
        if gradient is not None
    ]
    remote = [(state, change) for state, change in changes if not state.goes_to_chief]
    entries += [StagedGradient.of(None, change, state.variable) for state, change in remote]
    found["entries"] = stage(entries, attempt, name)
    found["optimizer"], found["variables"] = optimizer, variables
    found["sent"] = tuple(state for state, _ in changes if state.goes_to_chief)
    values = {key: value for key, value in logs.items() if _is_known(value)}
    found["log_names"] = tuple(logs)
    found["values"] = {
        key: tuple(tf.TensorShape(value.shape).as_list()) for key, value in values.items()
    }
    sent = [change for state, change in changes if state.goes_to_chief]
    parts = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in (*sent, *values.values())]
    return tf.concat([*parts, tf.zeros([1], tf.float64)], 0)


@contextlib.contextmanager
def _recording(model: Any, recorded: list[tuple[Any, list[tuple[Any, Any]]]]) -> Iterator[None]:
    """Make the model's optimizers record gradients instead of applying them."""
    attributes = [getattr(model, "optimizer", None), *vars(model).values()]
    optimizers = [
        value
        for value in {id(found): found for found in attributes}.values()
        if hasattr(value, "apply_gradients") and hasattr(value, "iterations")
    ]

    def noting(optimizer: Any) -> dict[str, Callable[..., None]]:
        def apply_gradients(pairs: Any, *_: Any, **__: Any) -> None:
            recorded.append((optimizer, list(pairs)))

        def apply(gradients: Any, variables: Any = None) -> None:
            wanted = variables if variables is not None else model.trainable_variables
            recorded.append((optimizer, list(zip(gradients, wanted, strict=True))))

        return {"apply_gradients": apply_gradients, "apply": apply}

    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(replaced(optimizer, **noting(optimizer)))
        yield


def _assigned(step: TracedStep, temporary: Mapping[int, Any]) -> set[int]:
    """Return the ids of variables that the model's own code assigns."""
    names = {handle.ref(): key for key, handle in temporary.items()}
    found: dict[int, int] = dict.fromkeys(temporary, 0)
    for operation in step.function.graph.get_operations():
        for value in operation.inputs:
            is_ours = value.dtype == tf.resource and value.ref() in names
            if is_ours and operation.type not in READS:
                found[names[value.ref()]] += 1
    # Two uses are ours: the initial assignment, and the destruction.
    return {key for key, count in found.items() if count > 2}


def _metrics_of(model: Any) -> Iterator[Any]:
    for metric in model.metrics:
        yield metric
        yield from getattr(metric, "metrics", ())  # Keras 3 lists those of compile as one


def _flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Flatten logs as Keras does, with inner names kept."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            is_plain = isinstance(value, int | float | np.ndarray | np.generic)
            yield name, tf.constant(value) if is_plain else value


def _is_known(value: Any) -> bool:
    """Tell whether a log is numeric with a static shape."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return False
    is_number = tf.as_dtype(dtype).is_numeric if not isinstance(dtype, str) else True
    return tf.TensorShape(shape).is_fully_defined() and (is_number or dtype == tf.bool)
