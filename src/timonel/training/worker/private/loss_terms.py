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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.training.worker.private import hidden_state, row_dependence
from timonel.training.worker.private.attributes import replaced

_LINEAR = frozenset(
    {"Add", "AddN", "AddV2", "Cast", "ExpandDims", "Identity", "IdentityN", "Neg", "Pack"}
    | {"Reshape", "Snapshot", "Squeeze", "StopGradient", "Sub"}
)
_REDUCTIONS = frozenset({"Mean", "Sum", "L2Loss"})
_DIVISIONS = frozenset({"DivNoNan", "RealDiv"})
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})


class TermKind(enum.Enum):
    """How a term depends on the rows of its batch."""

    SCALED = enum.auto()
    CONSTANT = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True)
class BatchRows:
    """The rows from which terms are computed."""

    rows: Any  # a tensor of the step that is traced, or an int if it is static
    given: Sequence[Any] = ()  # tensors with these rows; further ones are those that enter the step
    unclear: Callable[[], object] = lambda: None
    is_independent: bool = False  # no values depend on other rows, without a proof

    def has_rows(self, value: Any) -> bool:
        """Whether a tensor's first axis has the rows, each of which may be several."""
        size = value.shape[0]
        return size is None or (isinstance(self.rows, int) and size % self.rows == 0)

    def mixes(self, value: Any) -> bool:
        """Whether a tensor has not the rows of the batch, or computes them from each other."""
        if not self.has_rows(value):
            return True
        # Numbers that are known already, one beside the other, may be as many as the rows.
        if _reaches(value, lambda found: hasattr(found, "_timonel_kind")):
            return True
        if self.is_independent:
            return False
        found = row_dependence.mixes_rows(value, self.given, self.rows)
        if found is None:
            self.unclear()
        return bool(found)


@dataclass
class Step:
    """A ``train_step`` that this thread traces."""

    model: Any
    has_scaled: bool = False
    is_mixed: bool = False

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Watch its losses and tapes within the block."""
        return replaced(present, step=self)

    @property
    def has_own_terms(self) -> bool:
        """Whether it took gradients of an unscaled term; called functions count as scaled."""
        return self.is_mixed or not self.has_scaled

    def look(self, loss: Any) -> None:
        """Search for terms of a loss that depend on trained variables and are not scaled."""
        if loss.shape.rank:  # the tape adds up values of rows, as the replicas' gradients are
            self.has_scaled = True
            return
        variables = map(hidden_state.tensor_variable, self.model.trainable_variables)
        trained = {loss.graph.capture(found.handle).name for found in variables}
        self.is_mixed |= _reaches(
            loss,
            lambda value: value.name in trained,
            lambda value: (
                getattr(value, "_timonel_kind", None) is TermKind.SCALED
                or value.op.type.endswith("PartitionedCall")
            ),
        )


class _Present(threading.local):
    """State of the replica that this thread traces: each has its own thread."""

    step: Step | None = None  # a ``train_step``
    layout: Any = None  # None outside `row_means.weighted` and `row_means.part_of`
    inputs: Any = None  # of the innermost layer
    # Of layers that no layer calls, and of BatchNormalization: terms are examined from there on.
    outputs: list[Any]
    computed: list[Any]  # outputs of all layers
    values: list[Any]  # what the innermost layer gives to others
    terms: dict[int, list[Any]]  # what each layer adds
    depth = 0  # number of losses and metric functions that call each other here
    name = ""  # of the outer one
    whole: Callable[[], Any]  # computes it for the whole batch
    batch: BatchRows  # has its arguments
    caught: list[Any] | None = None  # gets what a metric function returns
    before_result: Callable[[], None] | None = None  # called before results of metrics are read
    graph: Any = None  # of the script's own step, in which they are read


present = _Present()


def noted(value: Any, kind: TermKind) -> Any:
    """Record the kind of a value, and return it."""
    if kind is TermKind.SCALED and present.step is not None:
        present.step.has_scaled = True
    value._timonel_kind = kind
    return value


def watching(
    original: Callable[..., Any], self: Any, target: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wrap ``GradientTape.gradient`` to inspect its loss."""
    if present.step is not None and hasattr(target, "graph"):
        present.step.look(target)
    return original(self, target, *args, **kwargs)


def kind_of(value: Any, batch: BatchRows) -> TermKind:
    """Return how a term, a tensor of the step that is traced, depends on the rows of its batch."""
    if hasattr(value, "_timonel_kind"):
        return value._timonel_kind  # type: ignore[no-any-return] # set by `noted`
    if not hasattr(value, "graph"):  # with run_eagerly
        return TermKind.MEAN
    if not _depends(value):
        return TermKind.CONSTANT
    return _kind_of_operation(value.op, list(value.op.inputs), batch)


def _kind_of_operation(operation: Any, inputs: list[Any], batch: BatchRows) -> TermKind:
    if operation.type in _REDUCTIONS:
        return _kind_of_reduction(operation, batch)
    if operation.type in _DIVISIONS:
        return _kind_of_quotient(inputs[0], inputs[1], batch)
    if operation.type == "Mul":
        varying = [found for found in inputs if _depends(found)]
        return kind_of(varying[0], batch) if len(varying) == 1 else TermKind.OTHER
    if operation.type in _LINEAR:
        return _joint({kind_of(found, batch) for found in inputs if found.dtype.is_floating})
    return TermKind.OTHER


def _kind_of_reduction(operation: Any, batch: BatchRows) -> TermKind:
    value, *axes = operation.inputs
    if value.shape.rank == 0 or batch.mixes(value):
        return TermKind.OTHER if operation.type == "L2Loss" else kind_of(value, batch)
    reduced = tf.get_static_value(axes[0]) if axes else None
    if reduced is not None and not {0, -(value.shape.rank or 0)} & set(np.ravel(reduced)):
        return TermKind.OTHER  # the rows remain
    return TermKind.MEAN if operation.type == "Mean" else TermKind.SUM


def _joint(kinds: Collection[TermKind]) -> TermKind:
    if len(kinds) == 1:
        return next(iter(kinds))
    # Weighing a constant by rows leaves it as it is.
    return TermKind.MEAN if set(kinds) == {TermKind.MEAN, TermKind.CONSTANT} else TermKind.OTHER


def _kind_of_quotient(value: Any, divisor: Any, batch: BatchRows) -> TermKind:
    kind, rows = kind_of(value, batch), batch.rows
    if _depends(divisor):
        is_count = not _depends(divisor, but=_SHAPES)
        return TermKind.MEAN if is_count and kind is TermKind.SUM else TermKind.OTHER
    static = _static(divisor)
    if kind is not TermKind.SUM or not isinstance(rows, int) or static is None:
        return kind
    counts = [rows, *(found.shape.num_elements() for found in value.op.inputs)]
    return TermKind.MEAN if float(static) in counts else kind


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
    return _reaches(value, row_dependence.is_data, lambda found: found.op.type in but)


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
