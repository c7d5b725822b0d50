"""Read, convert and follow TensorFlow Serving's ModelServerConfig.

The protos of `tensorflow_serving.config` do not import TensorFlow, unlike those of its API.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Self

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from timonel.serving.settings import (
    TENSORFLOW,
    Every,
    Latest,
    ModelSettings,
    RequestLogSettings,
    ServerSettings,
    Specific,
    VersionPolicy,
)
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_URI = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
TFRECORD_LOG = "tfrecord"
"""The only supported log collector type, see `timonel.serving.telemetry.request_log`."""
_MODEL_TYPES = {1: TENSORFLOW, 2: "other"}


class TextProtoError(StatusError):
    """A text that is not a text proto of the expected message.

    Args:
        path: The file that contains the text.
        message_name: The message's full name.
        reason: Line, column and problem, as reported by the parser.
    """

    def __init__(self, path: str, message_name: str, reason: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, f"Invalid protobuf file: '{path}'")
        self.diagnosis = f"Error parsing text-format {message_name}: {reason}"


def read_models(path: str) -> tuple[ModelSettings, ...]:
    """Return the models in a ModelServerConfig file, to start a server.

    Raises:
        StatusError: The file cannot be read or is invalid.
    """
    return first_models(parse_model_config(read_text(path), path))


def read_text(path: str) -> str:
    """Return a file's text.

    Raises:
        StatusError: The file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StatusError(Code.NOT_FOUND, f"{path}; No such file or directory") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StatusError(Code.UNKNOWN, f"{path}; {error}") from error


def parse_text_proto(text: str, message: Any, path: str) -> Any:
    """Parse a text proto into ``message`` and return it.

    Raises:
        TextProtoError: The text is invalid.
    """
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        reason = re.sub(r"^(\d+:\d+) :", r"\1:", str(error))
        raise TextProtoError(path, message.DESCRIPTOR.full_name, reason) from error


def parse_model_config(text: str, path: str) -> Any:
    """Parse a file's text as a ModelServerConfig.

    Raises:
        TextProtoError: The text is not a text proto of that message.
    """
    return parse_text_proto(text, model_server_config_pb2.ModelServerConfig(), path)


def first_models(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a server's first configuration; empty for no models.

    Raises:
        StatusError: The configuration is invalid.
    """
    kind = config.WhichOneof("config")
    if kind is None:
        return ()
    if kind != "model_config_list":
        raise invalid_argument("ModelServer does not yet support custom model config.")
    return models_from(config)


def next_models(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a configuration that replaces another one.

    Raises:
        StatusError: The configuration is invalid, or cannot replace another one.
    """
    if config.WhichOneof("config") != "model_config_list":
        raise StatusError(
            Code.FAILED_PRECONDITION,
            "Cannot transition to requested config. It is only legal to transition from one "
            "ModelConfigList to another.",
        )
    return models_from(config)


def models_from(config: Any) -> tuple[ModelSettings, ...]:
    """Return the models of a ModelServerConfig's model_config_list.

    Raises:
        StatusError: A model's configuration is invalid.
    """
    listed = list(config.model_config_list.config)
    check_names(model.name for model in listed)
    for model in listed:
        check_base_path(model.name, model.base_path)
    return tuple(_settings(model) for model in listed)


def check_names(names: Iterable[str]) -> None:
    """Reject a list that names a model twice.

    Raises:
        StatusError: A name is repeated.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid_argument(f"Illegal to list model {name} multiple times in config list")
        seen.add(name)


def check_base_path(name: str, base_path: str) -> None:
    """Reject a relative base path.

    Raises:
        StatusError: The base path is relative.
    """
    if not base_path.startswith("/") and not _URI.match(base_path):
        raise invalid_argument(
            f"Expected model {name} to have an absolute path or URI; got base_path()={base_path}"
        )


@contextlib.contextmanager
def followed(
    settings: ServerSettings, reconfigure: Callable[[Sequence[ModelSettings]], Future[None]]
) -> Iterator[None]:
    """Follow a server's configuration file during the block, if configured."""
    if settings.config_file is None or settings.config_poll_s <= 0:
        yield
        return
    with ConfigFollower(settings.config_file, settings.config_poll_s, reconfigure):
        yield


class ConfigFollower:
    """Apply a ModelServerConfig file periodically during a block, whether it has changed or not.

    If the file cannot be read or is rejected, the present state stays; repeats of an error are not
    logged again.

    Args:
        path: The file.
        period_s: Seconds between reads.
        reconfigure: Applies the models that were read.
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
        self._stop.set()
        self._thread.join()

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


def config_from(models: Sequence[ModelSettings]) -> Any:
    """Convert models to a ModelServerConfig."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.SetInParent()
    for model in models:
        entry = config.model_config_list.config.add(
            name=model.name, base_path=model.base_path, model_platform=model.platform
        )
        _write_policy(entry.model_version_policy, model.policy)
        for label, version in model.labels.items():
            entry.version_labels[label] = version
        if model.request_log is not None:
            collector = entry.logging_config.log_collector_config
            collector.type = TFRECORD_LOG
            collector.filename_prefix = model.request_log.filename_prefix
            entry.logging_config.sampling_config.sampling_rate = model.request_log.sampling_rate
    return config


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


def _write_policy(message: Any, policy: VersionPolicy) -> None:
    if isinstance(policy, Latest):
        message.latest.num_versions = policy.count
    elif isinstance(policy, Specific):
        message.specific.SetInParent()
        message.specific.versions.extend(policy.versions)
    else:
        message.all.SetInParent()
