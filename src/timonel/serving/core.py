"""The data plane: what REST and gRPC have in common.

All skins find a version, look up a signature, turn their wire form into arrays and come here.
Everything raises `StatusError`. Only `Call.predict` and `Run.result` wait for a model: in an event
loop, `timonel.serving.awaiting` waits for a run's future first.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.config import ModelSettings
from timonel.serving.exchange import Exchange, Recorder
from timonel.serving.fitting import chosen_outputs, complete_inputs
from timonel.serving.monitoring.observation import Observation
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.servables import Catalogue, ModelSpec, Servable
from timonel.serving.status import Code, StatusError
from timonel.serving.versions import VersionStatus

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What travels with a request through the server, whatever it asks for.

    Args:
        deadline: When its answer is of no use any more, in monotonic seconds.
        principal: Who sent it; none where nobody is asked.
        entrypoint: ``REST`` or ``GRPC``; empty for a request of the server's own.
        api: What was asked for, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        observation: What is measured of it; none if nobody wants to know.
    """

    deadline: float | None = None
    principal: str | None = None
    entrypoint: str = ""
    api: str = ""
    observation: Observation | None = None


NO_CONTEXT = RequestContext()


@dataclass(frozen=True)
class Metadata:
    """A loaded version's signatures, and what it is."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    platform: str


class Call:
    """One request's hold on a version: look up a signature, then run it."""

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
            # As the server calls it: a client's spelling could fill the metrics with names.
            context.observation.model = servable.name
            context.observation.version = servable.version

    @property
    def name(self) -> str:
        """The model's name."""
        return self._servable.name

    @property
    def version(self) -> int:
        """The version's number."""
        return self._servable.version

    def find(self, signature_name: str) -> Signature | None:
        """Return a signature; an empty name means the default one."""
        return self._servable.model.signatures.get(signature_name or DEFAULT_SIGNATURE)

    def signature(self, signature_name: str) -> Signature:
        """Return a signature.

        Raises:
            StatusError: The model has none of that name.
        """
        found = self.find(signature_name)
        if found is None:
            name = signature_name or DEFAULT_SIGNATURE
            raise StatusError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return found

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an array for an input, with any content; see `ScheduledModel.allocate`."""
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
    ) -> Run:
        """Begin to run a signature of this version, and do not wait for it.

        Args:
            signature: What to run.
            inputs: Arrays by input name; those with a default may be left out.
            output_filter: The outputs wanted; empty for all.

        Raises:
            StatusError: Inputs or outputs do not fit.
        """
        complete = complete_inputs(signature, inputs)
        outputs = chosen_outputs(signature, output_filter)
        observation = self.context.observation
        if observation is not None:
            observation.signature = signature.name
            observation.rows += _rows(inputs)
        began = time.monotonic()
        deadline = self.context.deadline
        future = self._servable.model.submit(signature.name, complete, outputs, deadline)
        return Run(self, signature, inputs, output_filter, future, began)

    def record(self, run: Run, outputs: Outputs) -> None:
        """Keep a run that succeeded, if anybody keeps such."""
        name = self._servable.name
        if self._recorder is not None and self._recorder.wants(name):
            self._recorder.record(
                Exchange(
                    name,
                    self._servable.version,
                    run.signature,
                    self.context.api,
                    run.inputs,
                    outputs,
                    run.output_filter,
                )
            )


class Run:
    """A signature that is being run; made by `Call.start`.

    Args:
        call: The request that it belongs to.
        signature: What is run.
        inputs: Arrays by input name, as the client gave them.
        output_filter: The outputs wanted; empty for all.
        future: What the model will answer. Cancel it if nobody waits for the answer any more.
        began: When it began, in monotonic seconds.
    """

    def __init__(
        self,
        call: Call,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str],
        future: Future[Outputs],
        began: float,
    ) -> None:
        self.signature = signature
        self.inputs = inputs
        self.output_filter = output_filter
        self.future = future
        self._call = call
        self._began = began

    def result(self) -> Outputs:
        """Return the outputs; blocks until the future is done. Call it once.

        Raises:
            StatusError: The model refused or failed, or the request was given up.
        """
        try:
            outputs = self.future.result()
        except StatusError:
            raise
        except CancelledError:
            raise StatusError(Code.CANCELLED, "the request was given up") from None
        except Exception as error:
            # A defect of a runtime must cost one request, not the connection.
            _LOG.exception("model %s failed", self._call.name)
            raise StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}") from error
        finally:
            observation = self._call.context.observation
            if observation is not None:
                compute_s = getattr(self.future, "compute_s", None)
                observation.ran(self._began, time.monotonic(), compute_s)
        self._call.record(self, outputs)
        return outputs


class Configurator(Protocol):
    """What knows which models are configured, and can replace them; the loader."""

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The configuration in force."""

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the configuration."""


class DataPlane:
    """What a server can be asked. Thread-safe.

    Args:
        catalogue: The versions in memory.
        configurator: What replaces the configuration; none where it is fixed.
        recorder: Takes a sample of what is asked and answered; none if nobody does.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        configurator: Configurator | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._configurator = configurator
        self._recorder = recorder

    def configuration(self) -> tuple[ModelSettings, ...]:
        """Return the models that are configured now.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().models

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Let a list of models take the place of the present one; does not block.

        Returns:
            What is done when every new model has a version that serves, or fails with a
            `StatusError`. Cancelling it ends the waiting, not the change.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().reconfigure(models)

    def _configurable(self) -> Configurator:
        if self._configurator is None:
            raise StatusError(Code.UNIMPLEMENTED, "The configuration of this server is fixed.")
        return self._configurator

    @contextlib.contextmanager
    def call(self, spec: ModelSpec, context: RequestContext = NO_CONTEXT) -> Iterator[Call]:
        """Hold a version during the block.

        Raises:
            StatusError: It is not loaded.
        """
        with self._catalogue.lease(spec) as servable:
            yield Call(servable, context, self._recorder)

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of a model's versions.

        Raises:
            StatusError: There is no such model or version.
        """
        return self._catalogue.statuses(name, version)

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded version.

        Raises:
            StatusError: It is not loaded.
        """
        with self._catalogue.lease(spec) as servable:
            model = servable.model
            return Metadata(servable.name, servable.version, model.signatures, model.platform)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Return the status of every model; empty for one without versions."""
        return {name: self._catalogue.known(name) for name in self._catalogue.names}

    def labels(self, name: str, version: int) -> tuple[str, ...]:
        """Return the class names of a loaded version; none if it has none or is not loaded."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.labels if servable else ()

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return the versions of a model that have names, by those; they need not be loaded."""
        return self._catalogue.version_labels(name)

    def outage(self, name: str, version: int) -> StatusError | None:
        """Return why a loaded version answers nothing at present; none if it does answer."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.outage if servable else None

    def restarts(self, name: str, version: int) -> int:
        """Return how often what computes a loaded version was lost and started again."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.restarts if servable else 0

    def unready(self) -> list[str]:
        """Return the models without a version that answers."""
        return [
            name
            for name in self._catalogue.names
            if all(each.model.outage for each in self._catalogue.loaded(name).values())
        ]


def _rows(inputs: Mapping[str, Array]) -> int:
    """Return the size of the first dimension, which is one for a scalar or for no input."""
    for array in inputs.values():
        return array.shape[0] if array.ndim else 1
    return 1
