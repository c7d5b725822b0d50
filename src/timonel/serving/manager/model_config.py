"""Read, convert and follow TensorFlow Serving's ModelServerConfig.

The protos of `tensorflow_serving.config` do not import TensorFlow, unlike those of its API.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from tensorflow_serving.config import model_server_config_pb2

from timonel.errors import SpecError
from timonel.serving.protos.text import parse_text_proto, read_text
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.models import (
    TENSORFLOW,
    Every,
    Latest,
    ModelSettings,
    RequestLogSettings,
    Specific,
    VersionPolicy,
)
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.storage.uris import normalise

_LOG = logging.getLogger(__name__)
_URI = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
TFRECORD_LOG = "tfrecord"
"""The only supported log collector type, see `timonel.serving.telemetry.request_log`."""
_MODEL_TYPES = {1: TENSORFLOW, 2: "other"}


def read_models(path: str) -> tuple[ModelSettings, ...]:
    """Return the models in a ModelServerConfig file, to start a server."""
    return first_models(parse_model_config(read_text(path), path))


def parse_model_config(text: str, path: str) -> Any:
    """Parse a file's text as a ModelServerConfig."""
    return parse_text_proto(text, model_server_config_pb2.ModelServerConfig(), path)


def first_models(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a server's first configuration; empty for no models."""
    kind = config.WhichOneof("config")
    if kind is None:
        return ()
    if kind != "model_config_list":
        raise invalid_argument("ModelServer does not yet support custom model config.")
    return models_from(config)


def reloaded_models(
    config: Any, present: Sequence[ModelSettings], trusted: Collection[str] = ()
) -> tuple[ModelSettings, ...]:
    """Return the models of a client's configuration, see `next_models`.

    Args:
        trusted: Names of models that may run code of their own; `EVERY_MODEL` for all.
    """
    models = next_models(config)
    known = {(model.name, model.base_path) for model in present}
    for model in models:
        is_trusted = not {model.name, EVERY_MODEL}.isdisjoint(trusted)
        if is_trusted and (model.name, model.base_path) not in known:
            raise StatusError(
                Code.PERMISSION_DENIED,
                f"Model {model.name} is trusted at its present base path only. "
                "Restart the server to serve it from another one.",
            )
    logged = [model for model in models if model.request_log is not None]
    kept = {model.name: model.request_log for model in present}
    if any(model.request_log != kept.get(model.name) for model in logged):
        raise invalid_argument("No request-logger-creator provided. Clients cannot log requests.")
    return models


def next_models(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a configuration that replaces another one."""
    if config.WhichOneof("config") != "model_config_list":
        raise StatusError(
            Code.FAILED_PRECONDITION,
            "Cannot transition to requested config. It is only legal to transition from one "
            "ModelConfigList to another.",
        )
    return models_from(config)


def models_from(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a ModelServerConfig's model_config_list."""
    listed = list(config.model_config_list.config)
    check_names(model.name for model in listed)
    for model in listed:
        check_base_path(model.name, model.base_path)
    return tuple(_settings(model) for model in listed)


def check_names(names: Iterable[str]) -> None:
    """Reject a list that names a model twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid_argument(f"Illegal to list model {name} multiple times in config list")
        seen.add(name)


def check_base_path(name: str, base_path: str) -> None:
    """Reject a relative base path."""
    if not base_path.startswith("/") and not _URI.match(base_path):
        raise invalid_argument(
            f"Expected model {name} to have an absolute path or URI; got base_path()={base_path}"
        )
    try:
        normalise(base_path)
    except SpecError as error:
        raise invalid_argument(f"The base path of model {name} is invalid: {error}") from error


class ConfigFollower:
    """Apply a ModelServerConfig file periodically during a block, whether it has changed or not.

    If the file cannot be read or is rejected, the present state stays; repeats of an error are not
    logged again.
    """

    def __init__(
        self,
        path: str,
        period_s: float,
        reconfigure: Callable[[Sequence[ModelSettings]], Future[None]],
    ) -> None:
        self._path = path
        self._period_s = period_s
        self._reconfigure = reconfigure
        self._logged: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="config", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Without a join: reading the file may hang.
        self._stop.set()

    def _follow(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                models = next_models(parse_model_config(read_text(self._path), self._path))
            except StatusError as error:
                self._log(error)
            else:
                # Do not wait: a model that never becomes available must not end the polling.
                self._reconfigure(models).add_done_callback(self._end)

    def _end(self, done: Future[None]) -> None:
        try:
            done.result()
        except StatusError as error:
            self._log(error)
        except CancelledError:
            return
        else:
            self._logged = None

    def _log(self, error: StatusError) -> None:
        text = f"{error} {getattr(error, 'diagnosis', '')}".rstrip()
        if text != self._logged:
            _LOG.error("Cannot apply the model configuration in %s: %s", self._path, text)
        self._logged = text


def _settings(model: Any) -> ModelSettings:
    if not model.name:
        raise invalid_argument("Expected a model's name in ModelConfig, got none.")
    return ModelSettings(
        name=model.name,
        base_path=model.base_path,
        policy=_policy(model.model_version_policy),
        labels=dict(model.version_labels),
        platform=_platform(model),
        request_log=_request_log(model.logging_config)
        if model.HasField("logging_config")
        else None,
    )


def _request_log(config: Any) -> RequestLogSettings:
    """Convert a LoggingConfig; released TensorFlow Serving has no logger."""
    collector, rate = config.log_collector_config, config.sampling_config.sampling_rate
    if collector.type != TFRECORD_LOG or not collector.filename_prefix:
        raise invalid_argument("No request-logger-creator provided.")
    if not 0 <= rate <= 1:
        raise invalid_argument(f"Expected sampling_rate to be from 0 to 1; was {rate}")
    return RequestLogSettings(filename_prefix=collector.filename_prefix, sampling_rate=rate)


def _platform(model: Any) -> str:
    kind: str = _MODEL_TYPES.get(model.model_type, "")
    if kind and model.model_platform:
        raise invalid_argument(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and "
            f"ModelServerConfig::model_platform, model name is {model.name}"
        )
    if not kind and not model.model_platform:
        raise invalid_argument(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {model.name}"
        )
    return kind or str(model.model_platform)


def _policy(policy: Any) -> VersionPolicy:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return Every()
    if kind == "specific":
        return Specific(versions=tuple(policy.specific.versions))
    return Latest(count=max(1, policy.latest.num_versions))
