"""Terms of a loss in the graph of a step: scaled, means or sums over the rows of a batch.

A replica sees a part of a batch. How its term is to be scaled depends on how the whole batch's
value would follow from the parts' values: a mean is weighed by rows, a sum is added up, and a loss
of `keras.losses` is scaled already. `kind_of` reads this from the operations that compute the term.

`Step` finds terms of a ``train_step`` that did not pass through Keras and so are not scaled.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.training.worker.private import hidden_state
from timonel.training.worker.private.attributes import replaced

_LINEAR = frozenset(
    {"Add", "AddN", "AddV2", "Cast", "ExpandDims", "Identity", "IdentityN", "Neg", "Pack"}
    | {"Reshape", "Snapshot", "Squeeze", "StopGradient", "Sub"}
)
_REDUCTIONS = frozenset({"Mean", "Sum", "L2Loss"})
_DIVISIONS = frozenset({"DivNoNan", "RealDiv"})
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})
_ITERATORS = ("IteratorGetNext", "OptionalGetValue")
_CONSTANTS = frozenset({"Const", "VarHandleOp"})
_SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
_PAIRS = 2
"""Axes of rows of a tensor with a value for each pair of rows."""


class Kind(enum.Enum):
    """How a term depends on the rows of its batch."""

    SCALED = enum.auto()
    CONSTANT = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    OTHER = enum.auto()


@dataclass
class Step:
    """A ``train_step`` that this thread traces."""

    model: Any
    has_scaled: bool = False
    is_mixed: bool = False

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Watch its losses and tapes within the block."""
        return replaced(_present, step=self)

    @property
    def has_own_terms(self) -> bool:
        """Whether it took gradients of an unscaled term.

        Terms in functions that the step calls are invisible, and count as scaled.
        """
        return self.is_mixed or not self.has_scaled

    def look(self, loss: Any) -> None:
        """Search for terms of a loss that depend on trained variables and are not scaled."""
        variables = map(hidden_state.tensor_variable, self.model.trainable_variables)
        trained = {loss.graph.capture(found.handle).name for found in variables}
        self.is_mixed |= _reaches(
            loss,
            lambda value: value.name in trained,
            lambda value: (
                getattr(value, "_timonel_kind", None) is Kind.SCALED
                or value.op.type.endswith("PartitionedCall")
            ),
        )


class _Present(threading.local):
    """State of the replica that this thread traces: each has its own thread."""

    step: Step | None = None


_present = _Present()


def noted(value: Any, kind: Kind) -> Any:
    """Record the kind of a value, and return it."""
    if kind is Kind.SCALED and _present.step is not None:
        _present.step.has_scaled = True
    value._timonel_kind = kind
    return value


def watching(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``GradientTape.gradient`` to inspect its loss."""

    def gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if _present.step is not None and hasattr(target, "graph"):
            _present.step.look(target)
        return original(self, target, *args, **kwargs)

    return gradient


def kind_of(value: Any, rows: Any) -> Kind:
    """Return how a term depends on the rows of its batch.

    Args:
        value: A tensor of the step that is traced.
        rows: Number of rows of the replica: a tensor, or an int if it is static.
    """
    if hasattr(value, "_timonel_kind"):
        return value._timonel_kind  # type: ignore[no-any-return] # set by `noted`
    if not hasattr(value, "graph"):  # with run_eagerly
        return Kind.MEAN
    if not _depends(value):
        return Kind.CONSTANT
    return _kind_of_operation(value.op.type, list(value.op.inputs), rows)


def mixes_rows(function: Callable[..., Any], given: Any) -> bool:
    """Whether a function of batches computes values of a row from other rows.

    The function is traced with a number of rows that no other axis has, so that shapes tell which
    axes are those of rows. Functions that accept no such number count as not mixing.

    Args:
        function: Returns a value per row, or a mean or sum of such values.
        given: Its arguments, tensors with rows.
    """
    flat = tf.nest.flatten(given)
    if not all(isinstance(value, tf.Tensor) and value.shape.rank for value in flat):
        return False
    sizes = {size for value in flat for size in value.shape}
    rows = next(rows for rows in (509, 521, 523, 541) if rows not in sizes)
    with tf.__internal__.FuncGraph("rows").as_default() as graph:
        batch = [
            tf.raw_ops.Placeholder(dtype=value.dtype, shape=[rows, *value.shape[1:]])
            for value in flat
        ]
        varying = {value.name for value in batch}
        try:
            found = tf.convert_to_tensor(function(*tf.nest.pack_sequence_as(given, batch)))
        except Exception:  # noqa: BLE001 - of the script's function
            return False
        if _row_axes(found, rows) == 0 and found.shape.rank:
            return kind_of(tf.reduce_sum(found), rows) not in {Kind.MEAN, Kind.CONSTANT}
    for operation in graph.get_operations():
        if operation.type not in _SHAPES and any(
            value.name in varying for value in operation.inputs
        ):
            varying.update(value.name for value in operation.outputs)
    return _reaches(
        found,
        lambda value: _crosses_rows(value, rows, varying),
        lambda value: value.name not in varying,
    )


def _crosses_rows(value: Any, rows: int, varying: Collection[str]) -> bool:
    """Whether a tensor has rows, and is computed from a tensor without, or with pairs, of rows."""
    if value.name not in varying:
        return False
    axes = _row_axes(value, rows)
    if value.op.type in _SOFTMAXES and axes and value.shape[-1] % rows == 0:
        return True
    inputs = [_row_axes(found, rows) for found in value.op.inputs if found.name in varying]
    return axes == _PAIRS or (axes == 1 and 0 in inputs)


def _row_axes(value: Any, rows: int) -> int | None:
    """Return how many axes of a tensor are those of rows; None if unknown."""
    if value.dtype in {tf.variant, tf.resource} or not value.shape.is_fully_defined():
        return None
    return min([size > 0 and size % rows == 0 for size in value.shape].count(True), _PAIRS)


def _kind_of_operation(operation: str, inputs: list[Any], rows: Any) -> Kind:
    if operation in _REDUCTIONS:
        return _kind_of_reduction(operation, inputs[0], rows)
    if operation in _DIVISIONS:
        return _kind_of_quotient(inputs[0], inputs[1], rows)
    if operation == "Mul":
        varying = [found for found in inputs if _depends(found)]
        return kind_of(varying[0], rows) if len(varying) == 1 else Kind.OTHER
    if operation in _LINEAR:
        return _joint({kind_of(found, rows) for found in inputs if found.dtype.is_floating})
    return Kind.OTHER


def _kind_of_reduction(operation: str, value: Any, rows: Any) -> Kind:
    if not _has_rows(value, rows):
        return Kind.OTHER if operation == "L2Loss" else kind_of(value, rows)
    if _reaches(value, lambda found: found.op.type == "Where"):
        return Kind.OTHER  # of selected rows, whose number differs between replicas
    return Kind.MEAN if operation == "Mean" else Kind.SUM


def _joint(kinds: Collection[Kind]) -> Kind:
    if len(kinds) == 1:
        return next(iter(kinds))
    # Weighing a constant by rows leaves it as it is.
    return Kind.MEAN if set(kinds) == {Kind.MEAN, Kind.CONSTANT} else Kind.OTHER


def _kind_of_quotient(value: Any, divisor: Any, rows: Any) -> Kind:
    kind = kind_of(value, rows)
    if _depends(divisor):
        is_count = not _depends(divisor, but=_SHAPES)
        return Kind.MEAN if is_count and kind is Kind.SUM else Kind.OTHER
    static = _static(divisor)
    if kind is not Kind.SUM or not isinstance(rows, int) or static is None:
        return kind
    counts = [rows, *(found.shape.num_elements() for found in value.op.inputs)]
    return Kind.MEAN if float(static) in counts else kind


def _static(value: Any) -> Any:
    """Return a constant's value; None if unknown. TensorFlow does not look through slices."""
    found = tf.get_static_value(value)
    if found is not None or value.op.type not in {"Cast", "StridedSlice"}:
        return found
    source, *begin = [tf.get_static_value(each) for each in value.op.inputs][:2]
    if value.op.type == "Cast":
        return _static(value.op.inputs[0])
    return None if source is None else source[begin[0][0]]


def _depends(value: Any, but: Collection[str] = ()) -> bool:
    """Whether a value depends on the batch, other than through operations of the types ``but``."""
    return _reaches(value, _is_data, lambda found: found.op.type in but)


def _is_data(value: Any) -> bool:
    if value.op.inputs:
        return bool(value.op.type.startswith(_ITERATORS))
    return value.op.type not in _CONSTANTS and value.dtype != tf.resource


def _reaches(
    value: Any, is_goal: Callable[[Any], bool], stops: Callable[[Any], bool] = lambda _: False
) -> bool:
    """Whether a value is computed from a goal, other than through values where the search stops."""
    waiting, seen = [value], set()
    while waiting:
        found = waiting.pop()
        if found.name in seen:
            continue
        if is_goal(found):
            return True
        seen.add(found.name)
        if not stops(found):
            waiting += found.op.inputs
    return False


def _has_rows(value: Any, rows: Any) -> bool:
    """Whether the first axis of a value is that of the batch."""
    if value.shape.rank == 0:
        return False
    if value.shape.rank is None or value.shape[0] is None:
        return True

    def has_others(found: Any) -> bool:
        return not found.shape.rank or found.shape[0] != rows or _removes_rows(found)

    # Another axis may have as many entries: only that of the data counts.
    return isinstance(rows, int) and _reaches(
        value, lambda found: _is_data(found) and not has_others(found), has_others
    )


def _removes_rows(value: Any) -> bool:
    if value.op.type not in _REDUCTIONS:
        return False
    axes = tf.get_static_value(value.op.inputs[1]) if value.op.type != "L2Loss" else None
    return axes is None or 0 in axes or -value.op.inputs[0].shape.rank in axes
