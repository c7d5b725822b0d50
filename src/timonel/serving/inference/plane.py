"""The data plane: versions, their status, and the configuration."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Self

from timonel.serving.futures import outcome
from timonel.serving.inference.context import NO_CONTEXT, LoggedRequest, Recorder, RequestContext
from timonel.serving.inference.signature_check import (
    check_encodings,
    check_shapes,
    chosen_outputs,
    complete_inputs,
    drop_column,
)
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.manager.manager import ModelManager
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.settings import ModelSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, INIT_OP, Array, Signature
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]


class Call:
    """A request's use of a version: find a signature, then run it.

    Not a generator, as a context manager of one costs several times as much.

    Args:
        servable: The version, acquired for this call.
        context: The request's context.
        recorder: Records a sample of requests and responses; None for no recording.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Stop using the version, which may then be unloaded. Call it once."""
        self._servable.release()

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
        check_encodings(signature, outputs)
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
        """Log a successful execution if the recorder samples it; keep outputs to be compared."""
        observation = self.context.observation
        if observation is not None and observation.outputs is not None:
            observation.outputs.append(outputs)
        name, api = self._servable.name, self.context.api
        if self._recorder is not None and self._recorder.wants(name):
            inputs, chosen = run.inputs, run.output_filter
            self._recorder.record(
                LoggedRequest(name, self.version, run.signature, api, inputs, outputs, chosen)
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
            raise StatusError(Code.CANCELLED, "the request was cancelled") from None
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


@dataclass(frozen=True)
class Metadata:
    """A loaded version's signatures and platform."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    platform: str


class DataPlane:
    """Access to models, versions and configuration for all frontends. Thread-safe.

    Args:
        catalogue: The loaded versions.
        manager: Replaces the configuration; None if it is fixed.
        recorder: Records a sample of requests and responses; None for no recording.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        manager: ModelManager | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._manager = manager
        self._recorder = recorder

    def configuration(self) -> tuple[ModelSettings, ...]:
        """Return the configured models.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().models

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the list of models; does not block.

        Returns:
            A future that is done when every new model serves a version, or fails with a
            `StatusError`. Cancelling it ends the wait, not the change.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().reconfigure(models)

    def _configurable(self) -> ModelManager:
        if self._manager is None:
            raise StatusError(Code.UNIMPLEMENTED, "The configuration of this server is fixed.")
        return self._manager

    def call(self, spec: ModelSpec, context: RequestContext = NO_CONTEXT) -> Call:
        """Acquire a version; use the result in a ``with`` block, or release it.

        Raises:
            StatusError: The version is not loaded.
        """
        return Call(self._catalogue.acquire(spec), context, self._recorder)

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of a model's versions.

        Raises:
            StatusError: The model or version does not exist.
        """
        return self._catalogue.statuses(name, version)

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded version.

        Raises:
            StatusError: The version is not loaded.
        """
        with self._catalogue.lease(spec) as servable:
            model = servable.model
            return Metadata(servable.name, servable.version, model.signatures, model.platform)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Return the status of every model; empty for one without versions."""
        return {name: self._catalogue.known(name) for name in self._catalogue.names}

    def labels(self, name: str, version: int) -> tuple[str, ...]:
        """Return the class names of a loaded version; empty if none."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.labels if servable else ()

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return a model's versions by label; they need not be loaded."""
        return self._catalogue.version_labels(name)

    def outage(self, name: str, version: int) -> StatusError | None:
        """Return why a loaded version is temporarily unavailable; None if available."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.outage if servable else None

    def restarts(self, name: str, version: int) -> int:
        """Return how often a loaded version's process was restarted."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.restarts if servable else 0

    def unready(self) -> list[str]:
        """Return the models without an available version."""
        return [
            name
            for name in self._catalogue.names
            if all(each.model.outage for each in self._catalogue.loaded(name).values())
        ]
