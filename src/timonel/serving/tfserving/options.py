"""Translate flags to a server's settings. Pure: files were read before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timonel.serving.auth import tensorflow_serving_access
from timonel.serving.manager.model_config import check_base_path
from timonel.serving.protocols.tfs_grpc.options import parse_channel_arguments
from timonel.serving.runtimes.python.options import python_settings
from timonel.serving.settings import (
    TENSORFLOW,
    GrpcSettings,
    LoadSettings,
    ModelSettings,
    MonitoringSettings,
    RestSettings,
    RuntimeSettings,
    ServerSettings,
)
from timonel.serving.settings.batching import BatchingParameters, BatchingSettings, NoBatching
from timonel.serving.settings.runtime import ComputeSettings, by_model, runtime_choice
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.tfserving.flags import Parsed, Value
from timonel.serving.tfserving.table import MEANINGLESS

_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - where TensorFlow Serving listens
_ANY_ADDRESS_V6 = "::"
_MOST_THREADS = 64


@dataclass(frozen=True)
class Translation:
    """Result of translating flags.

    Args:
        settings: The server's settings.
        remarks: A line for each given flag that has no effect.
    """

    settings: ServerSettings
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Files:
    """Content of the files named by flags.

    Args:
        models: The models of ``--model_config_file``; None without it.
        batching: The parameters of ``--batching_parameters_file``; None without it.
        metrics_path: The metrics path of ``--monitoring_config_file``; None if disabled.
    """

    models: Sequence[ModelSettings] | None = None
    batching: BatchingParameters | None = None
    metrics_path: str | None = None


def translate(parsed: Parsed, files: Files, cores: int) -> Translation:
    """Return the settings of the server for the given flags.

    Args:
        parsed: The flags.
        files: The content of the files named by flags.
        cores: The processors of this machine.

    Raises:
        StatusError: TensorFlow Serving would fail to start, or the server would be less secure than
            requested.
    """
    values = _Values(parsed.values)
    _check(values)
    port, rest_port = values.integer("port"), values.integer("rest_api_port")
    mute = MEANINGLESS
    remarks = [f"--{name} has no effect: {mute[name]}" for name in mute if name in parsed.given]
    if rest_port == port and rest_port:
        remarks.append(
            "--rest_api_port cannot be same as --port. Please use a different port for HTTP/REST "
            "API. Skipped exporting HTTP/REST API."
        )
        rest_port = 0
    models = _single(values) if files.models is None else tuple(files.models)
    period = values.integer("model_config_file_poll_wait_seconds")
    settings = ServerSettings(
        models=models,
        config_file=values.text("model_config_file") or None,
        config_poll_s=max(0, period),
        dialect="tensorflow-serving",
        host=_ANY_ADDRESS,
        rest_host=_ANY_ADDRESS_V6,
        rest_port=rest_port or None,
        rest_is_optional=True,
        rest=_rest(values),
        grpc_port=port or None,
        grpc=_grpc(values),
        compute_threads=min(_MOST_THREADS, max(2, cores)),
        drain_s=max(0, values.integer("drain_seconds")),
        isolation="none",
        compute=ComputeSettings(
            hang_timeout_s=max(0, values.integer("hang_timeout_seconds")) or None
        ),
        load=_load(values, cores),
        runtime=_runtime(values, files.batching),
        monitoring=MonitoringSettings(metrics_path=files.metrics_path),
        python=python_settings(values.items("allow_python"), values.items("hooks")),
        access=tensorflow_serving_access(values.text("ssl_config_file")),
    )
    return Translation(settings, tuple(remarks))


class _Values:
    """Typed access to flags."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def truth(self, name: str) -> bool:
        return self._values[name] is True

    def text(self, name: str) -> str:
        return str(self._values[name])

    def items(self, name: str) -> tuple[str, ...]:
        return tuple(filter(None, self.text(name).split(",")))


def _check(values: _Values) -> None:
    if values.integer("port") == 0 and not values.text("grpc_socket_path"):
        raise invalid_argument(
            "At least one of server_options.grpc_port or server_options.grpc_socket_path must be "
            "set."
        )
    if not values.text("model_base_path") and not values.text("model_config_file"):
        raise invalid_argument(
            "Both server_options.model_base_path and server_options.model_config_file are empty!"
        )
    for name in ("port", "rest_api_port"):
        if values.integer(name) not in range(65536):
            raise invalid_argument(f"--{name} must be between 0 and 65535; was {values.text(name)}")
    if values.text("batching_parameters_file") and not values.truth("enable_batching"):
        raise invalid_argument(
            "server_options.batching_parameters_file is set without setting "
            "server_options.enable_batching to true."
        )
    parallelism = ("session", "intra_op", "inter_op")
    if all(values.integer(f"tensorflow_{kind}_parallelism") > 0 for kind in parallelism):
        raise invalid_argument(
            "Either configure server_options.tensorflow_session_parallelism or configure "
            "server_options.tensorflow_intra_op_parallelism and "
            "server_options.tensorflow_inter_op_parallelism, not all of them."
        )
    if values.truth("use_alts_credentials"):
        raise StatusError(Code.UNIMPLEMENTED, "ALTS is not available; gRPC would not be encrypted.")


def _single(values: _Values) -> tuple[ModelSettings, ...]:
    name, base_path = values.text("model_name"), values.text("model_base_path")
    check_base_path(name, base_path)
    return (ModelSettings(name=name, base_path=base_path),)


def _rest(values: _Values) -> RestSettings:
    timeout_ms = values.integer("rest_api_timeout_in_ms")
    return RestSettings(
        page=values.truth("rest_api_enable_page"),
        cors=values.truth("rest_api_enable_cors_support"),
        # As in TensorFlow's sessions, zero means no limit.
        timeout_s=timeout_ms / 1000 if timeout_ms > 0 else None,
        check_method_names=values.truth("enable_signature_method_name_check"),
    )


def _grpc(values: _Values) -> GrpcSettings:
    try:
        arguments = parse_channel_arguments(values.text("grpc_channel_arguments"))
    except ValueError as error:
        raise invalid_argument(str(error)) from error
    return GrpcSettings(
        socket_path=values.text("grpc_socket_path") or None,
        channel_arguments=arguments,
        health=values.truth("enable_grpc_healthcheck_service"),
        reflection=False,
        tensor_content=values.truth("enable_serialization_as_tensor_content"),
        check_method_names=values.truth("enable_signature_method_name_check"),
    )


def _load(values: _Values, cores: int) -> LoadSettings:
    poll_s = max(0, values.integer("file_system_poll_wait_seconds"))
    return LoadSettings(
        poll_s=poll_s,
        # A version must not appear much later than with a server that polls once.
        settle_s=min(1, poll_s) if poll_s else 0.2,
        threads=max(0, values.integer("num_load_threads")) or max(2, cores),
        unload_threads=max(1, values.integer("num_unload_threads")),
        max_retries=max(0, values.integer("max_num_load_retries")),
        retry_s=max(0, values.integer("load_retry_interval_micros")) / 1e6,
        resource_preserving=values.items("resource_preserving_models"),
        model_cache=values.text("model_cache") or None,
        model_cache_bytes=max(0, values.integer("model_cache_mib")) << 20,
        retry_all=True,
        fall_back=False,
        wait_for_versions=True,
        keep_labelled=False,
        warm_up=values.truth("enable_model_warmup"),
        warm_up_iterations=max(1, values.integer("num_request_iterations_for_warmup")),
        labels_may_wait=values.truth("allow_version_labels_for_unavailable_models"),
    )


def _runtime(values: _Values, parameters: BatchingParameters | None) -> RuntimeSettings:
    both = max(0, values.integer("tensorflow_session_parallelism"))
    return RuntimeSettings(
        **runtime_choice(values.items("runtime"), default=TENSORFLOW),
        prefer_tflite=values.truth("prefer_tflite_model"),
        interpreters=max(0, values.integer("num_tflite_pools")),
        tags=values.items("saved_model_tags"),
        safe_loading=values.truth("safe_loading"),
        allow_ops=by_model(values.items("allow_ops"), "an operation"),
        intra_op_threads=max(0, values.integer("tensorflow_intra_op_parallelism")) or both,
        inter_op_threads=max(0, values.integer("tensorflow_inter_op_parallelism")) or both,
        batching=_batching(values, parameters),
    )


def _batching(values: _Values, parameters: BatchingParameters | None) -> BatchingSettings:
    if not values.truth("enable_batching"):
        return NoBatching()
    chosen = parameters or BatchingParameters(thread_pool_name="model_server_batch_threads")
    return chosen.model_copy(
        update={"per_model": values.truth("enable_per_model_batching_parameters")}
    )
