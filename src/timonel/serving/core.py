"""The data plane: what REST and gRPC have in common.

Both skins find a version, look up a signature, turn their wire form into arrays and come here.
Everything raises `StatusError`. All methods block; skins call them outside their event loop.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.config import ModelSettings
from timonel.serving.exchange import Exchange, Recorder
from timonel.serving.monitoring.observation import Observation, take_report
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, Array, ScheduledModel, Signature
from timonel.serving.servables import Catalogue, ModelSpec, Servable
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.versions import VersionStatus

_LOG = logging.getLogger(__name__)


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
    """A loaded version's signatures."""

    name: str
    version: int
    signatures: Mapping[str, Signature]


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

    def predict(
        self,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str] = (),
    ) -> dict[str, Array]:
        """Run a signature of this version.

        Args:
            signature: What to run.
            inputs: Arrays by input name; those with a default may be left out.
            output_filter: The outputs wanted; empty for all.

        Raises:
            StatusError: Inputs or outputs do not fit, or the model refused.
        """
        complete = _with_defaults(signature, inputs)
        outputs = _chosen(signature, output_filter)
        try:
            results = self._run(signature, complete, outputs)
        except StatusError:
            raise
        except Exception as error:
            # A defect of a runtime must cost one request, not the connection.
            _LOG.exception("model %s failed", self._servable.name)
            raise StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}") from error
        if self._recorder is not None and self._recorder.wants(self._servable.name):
            self._recorder.record(
                Exchange(
                    self._servable.name,
                    self._servable.version,
                    signature,
                    self.context.api,
                    inputs,
                    results,
                    output_filter,
                )
            )
        return results

    def _run(
        self, signature: Signature, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        observation = self.context.observation
        if observation is None:
            return self._compute(signature, inputs, outputs)
        observation.signature = signature.name
        observation.rows += _rows(inputs)
        take_report()
        began = time.monotonic()
        try:
            return self._compute(signature, inputs, outputs)
        finally:
            observation.ran(began, time.monotonic(), take_report())

    def _compute(
        self, signature: Signature, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        model, deadline = self._servable.model, self.context.deadline
        if deadline is None or not isinstance(model, ScheduledModel):
            return model.run(signature.name, inputs, outputs)
        return model.run(signature.name, inputs, outputs, deadline)


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
            return Metadata(servable.name, servable.version, servable.model.signatures)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Return the status of every model; empty for one without versions."""
        return {name: self._catalogue.known(name) for name in self._catalogue.names}

    def labels(self, name: str, version: int) -> tuple[str, ...]:
        """Return the class names of a loaded version; none if it has none or is not loaded."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.labels if servable else ()

    def unready(self) -> list[str]:
        """Return the models without a version that serves."""
        return [name for name in self._catalogue.names if not self._catalogue.loaded(name)]


def _rows(inputs: Mapping[str, Array]) -> int:
    """Return the size of the first dimension, which is one for a scalar or for no input."""
    for array in inputs.values():
        return array.shape[0] if array.ndim else 1
    return 1


def _chosen(signature: Signature, output_filter: Sequence[str]) -> list[str]:
    if not output_filter:
        return list(signature.outputs)
    chosen: list[str] = []
    for alias in output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {{{_names(signature.outputs)}}}."
            )
        if alias in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        chosen.append(alias)
    return chosen


def _with_defaults(signature: Signature, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    if inputs.keys() == signature.inputs.keys():
        return inputs
    check_inputs(signature, inputs.keys())
    defaults = signature.defaults
    return {name: inputs[name] if name in inputs else defaults[name] for name in signature.inputs}


def check_inputs(signature: Signature, given: AbstractSet[str]) -> None:
    """Refuse a request by the names of its inputs; those with a default may be left out.

    Raises:
        StatusError: One is missing, or there are others.
    """
    expected, defaults = signature.inputs, signature.defaults
    missing, extra = expected.keys() - given, given - expected.keys()
    if len(given) > len(expected) or (len(given) < len(expected) and not defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(given)}!={len(expected)} "
            f"len({{{_names(given)}}}) != len({{{_names(expected)}}}). "
            f"Sent extra: {{{_names(extra)}}}. Missing but required: {{{_names(missing)}}}."
        )
    for alias in sorted(missing - defaults.keys()):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {expected[alias].tensor}) not found in "
            "request and no default value provided. Inputs expected to be in the request "
            f"{{{_names(given)}}}, or default input alias set: {_names(defaults)}"
        )
    if extra:
        used = _names(given & expected.keys())
        raise invalid_argument(
            f"Inputs contains invalid name. Used request inputs: {used}, "
            f"request input: {_names(given)}"
        )


def _names(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
