"""A request's use of a version, and its executions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future

from timonel.serving.inference.context import NO_CONTEXT, RequestContext
from timonel.serving.inference.logged_request import LoggedRequest, Recorder
from timonel.serving.inference.signature_check import (
    check_shapes,
    chosen_outputs,
    complete_inputs,
    drop_column,
)
from timonel.serving.manager.catalogue import Servable
from timonel.serving.signature import DEFAULT_SIGNATURE, INIT_OP, Array, Signature
from timonel.serving.status import Code, StatusError, outcome

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]


class Call:
    """A request's use of a version: find a signature, then run it."""

    def __init__(
        self,
        servable: Servable,
        context: RequestContext = NO_CONTEXT,
        recorder: Recorder | None = None,
    ) -> None:
        self._servable = servable
        self._recorder = recorder
        self.context = context
        if context.observation is not None:
            # The server's spelling: those of clients could fill the metrics with names.
            context.observation.model = servable.name
            context.observation.version = servable.version

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._servable.name

    @property
    def version(self) -> int:
        """Number of the version."""
        return self._servable.version

    def find(self, signature_name: str) -> Signature | None:
        """Return a signature, or None; an empty name means the default one."""
        if signature_name == INIT_OP:
            return None
        return self._servable.model.signatures.get(signature_name or DEFAULT_SIGNATURE)

    def signature(self, signature_name: str) -> Signature:
        """Return a signature; an empty name means the default one.

        Raises:
            StatusError: The model has no signature of that name.
        """
        found = self.find(signature_name)
        if found is None:
            name = signature_name or DEFAULT_SIGNATURE
            raise StatusError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return found

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an uninitialized array for an input; see `ScheduledModel.allocate`."""
        return self._servable.model.allocate(shape, dtype)

    def predict(
        self,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str] = (),
    ) -> Outputs:
        """Run a signature of this version, and wait for it; see `start`."""
        return self.start(signature, inputs, output_filter).result()

    def start(
        self,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str] = (),
    ) -> Execution:
        """Start running a signature of this version, without waiting for it.

        Args:
            signature: The signature to run.
            inputs: Arrays by input name; those with a default may be left out.
            output_filter: The requested outputs; empty for all.

        Raises:
            StatusError: Inputs or outputs do not match the signature.
        """
        complete = complete_inputs(signature, inputs)
        shaped = check_shapes(signature, complete)
        outputs = chosen_outputs(signature, output_filter)
        observation = self.context.observation
        if observation is not None:
            observation.signature = signature.name
            observation.rows += _rows(inputs)
        began = time.monotonic()
        deadline = self.context.deadline
        future = self._servable.model.submit(signature.name, shaped, outputs, deadline)
        column = None
        if shaped is not complete:
            column = next(each.shape for name, each in complete.items() if each is not shaped[name])
        return Execution(self, signature, inputs, output_filter, future, began, column)

    def record(self, run: Execution, outputs: Outputs) -> None:
        """Log a successful execution if the recorder samples it."""
        name = self._servable.name
        if self._recorder is not None and self._recorder.wants(name):
            self._recorder.record(
                LoggedRequest(
                    name,
                    self._servable.version,
                    run.signature,
                    self.context.api,
                    run.inputs,
                    outputs,
                    run.output_filter,
                )
            )


class Execution:
    """A running signature; created by `Call.start`.

    Args:
        call: The call that started it.
        signature: The signature.
        inputs: Arrays by input name, as the client gave them.
        output_filter: The requested outputs; empty for all.
        future: The model's future outputs. Cancel it if they are no longer needed.
        began: The start time, in monotonic seconds.
        column: The shape of the client's input if it lacked a dimension of size 1.
    """

    def __init__(
        self,
        call: Call,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str],
        future: Future[Outputs],
        began: float,
        column: tuple[int, ...] | None = None,
    ) -> None:
        self.signature = signature
        self.inputs = inputs
        self.output_filter = output_filter
        self.future = future
        self._call = call
        self._began = began
        self._column = column

    def result(self) -> Outputs:
        """Return the outputs; blocks until the future is done. Call it once.

        Raises:
            StatusError: The model rejected the request or failed, or the request was cancelled.
        """
        try:
            outputs = outcome(self.future)
        except StatusError:
            raise
        except CancelledError:
            raise StatusError(Code.CANCELLED, "the request was given up") from None
        except Exception as error:
            # A bug in a runtime must fail one request, not the connection.
            _LOG.exception("model %s failed", self._call.name)
            raise StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}") from error
        finally:
            observation = self._call.context.observation
            if observation is not None:
                compute_s = getattr(self.future, "compute_s", None)
                observation.ran(self._began, time.monotonic(), compute_s)
        if self._column is not None:
            outputs = drop_column(outputs, self._column)
        self._call.record(self, outputs)
        return outputs


def _rows(inputs: Mapping[str, Array]) -> int:
    """Return the first input's row count; 1 for scalars or no input."""
    for array in inputs.values():
        return array.shape[0] if array.ndim else 1
    return 1
