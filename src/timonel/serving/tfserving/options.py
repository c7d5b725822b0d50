"""Translate flags and the files they name to a server's settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from timonel.serving.manager.model_config import check_base_path
from timonel.serving.protos.described import config_message
from timonel.serving.protos.text import parse_text_proto
from timonel.serving.settings.auth import tensorflow_serving_access
from timonel.serving.settings.batching import BatchingParameters, BatchingSettings, NoBatching
from timonel.serving.settings.models import TENSORFLOW, LoadSettings, ModelSettings
from timonel.serving.settings.runtime import (
    PythonSettings,
    RuntimeSettings,
    by_model,
    runtime_choice,
)
from timonel.serving.settings.server import (
    METRICS_PATH,
    GrpcSettings,
    MonitoringSettings,
    RestSettings,
    ServerSettings,
)
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.tfserving.flags import MEANINGLESS, Parsed

_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - where TensorFlow Serving listens
_ANY_ADDRESS_V6 = "::"
_MOST_THREADS = 64
_INT32 = range(-(2**31), 2**31)


def translate(
    parsed: Parsed,
    cores: int,
    *,
    models: Sequence[ModelSettings] | None = None,
    batching: BatchingParameters | None = None,
    metrics_path: str | None = None,
) -> tuple[ServerSettings, list[str]]:
    """Return the settings of the server for the given flags, and a line for each without effect.

    ``models``, ``batching`` and ``metrics_path`` are what the files of flags say, None without one.
    """
    _check(parsed)
    port, rest_port = parsed.integer("port"), parsed.integer("rest_api_port")
    remarks = [
        f"--{name} has no effect: {reason}"
        for name, reason in MEANINGLESS.items()
        if name in parsed.given
    ]
    if rest_port == port and rest_port:
        remarks.append(
            "--rest_api_port cannot be same as --port. Please use a different port for HTTP/REST "
            "API. Skipped exporting HTTP/REST API."
        )
        rest_port = 0
    period = parsed.integer("model_config_file_poll_wait_seconds")
    settings = ServerSettings(
        models=_single(parsed) if models is None else tuple(models),
        config_file=parsed.text("model_config_file") or None,
        config_poll_s=max(0, period),
        host=_ANY_ADDRESS,
        rest_host=_ANY_ADDRESS_V6,
        rest_port=rest_port or None,
        rest_is_optional=True,
        rest=_rest(parsed),
        grpc_port=port or None,
        grpc=_grpc(parsed),
        compute_threads=min(_MOST_THREADS, max(2, cores)),
        drain_s=max(0, parsed.integer("drain_seconds")),
        load=_load(parsed, cores),
        runtime=_runtime(parsed, batching),
        monitoring=MonitoringSettings(metrics_path=metrics_path),
        python=PythonSettings(allow=tuple(parsed.items("allow_python"))),
        access=tensorflow_serving_access(parsed.text("ssl_config_file")),
    )
    return settings, remarks


def _check(values: Parsed) -> None:
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


def _single(values: Parsed) -> tuple[ModelSettings, ...]:
    name, base_path = values.text("model_name"), values.text("model_base_path")
    check_base_path(name, base_path)
    return (ModelSettings(name=name, base_path=base_path),)


def _rest(values: Parsed) -> RestSettings:
    timeout_ms = values.integer("rest_api_timeout_in_ms")
    return RestSettings(
        extensions=False,
        page=False,
        cors=values.truth("rest_api_enable_cors_support"),
        # As in TensorFlow's sessions, zero means no limit.
        timeout_s=timeout_ms / 1000 if timeout_ms > 0 else None,
        check_method_names=values.truth("enable_signature_method_name_check"),
    )


def _grpc(values: Parsed) -> GrpcSettings:
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


def _load(values: Parsed, cores: int) -> LoadSettings:
    poll_s = max(0, values.integer("file_system_poll_wait_seconds"))
    return LoadSettings(
        poll_s=poll_s,
        # A version must not appear much later than with a server that polls once.
        settle_s=min(1, poll_s) if poll_s else 0.2,
        threads=max(0, values.integer("num_load_threads")) or max(2, cores),
        load_timeout_s=max(0, values.integer("load_timeout_seconds")) or None,
        fail_fast=True,
        max_retries=max(0, values.integer("max_num_load_retries")),
        retry_s=max(0, values.integer("load_retry_interval_micros")) / 1e6,
        resource_preserving=values.items("resource_preserving_models"),
        model_cache=values.text("model_cache") or None,
        model_cache_size=max(0, values.integer("model_cache_mib")) << 20,
        as_tfserving=True,
        warm_up=values.truth("enable_model_warmup"),
        warm_up_iterations=max(1, values.integer("num_request_iterations_for_warmup")),
        labels_may_wait=values.truth("allow_version_labels_for_unavailable_models"),
    )


def _runtime(values: Parsed, parameters: BatchingParameters | None) -> RuntimeSettings:
    both = max(0, values.integer("tensorflow_session_parallelism"))
    return RuntimeSettings(
        **runtime_choice(values.items("runtime"), default=TENSORFLOW),
        prefer_tflite=values.truth("prefer_tflite_model"),
        interpreters=max(0, values.integer("num_tflite_pools")),
        tags=values.items("saved_model_tags"),
        safe_loading=values.truth("safe_loading"),
        allow_ops=by_model(values.items("allow_ops"), "an operation"),
        op_libraries=values.items("op_libraries"),
        intra_op_threads=max(0, values.integer("tensorflow_intra_op_parallelism")) or both,
        inter_op_threads=max(0, values.integer("tensorflow_inter_op_parallelism")) or both,
        batching=_batching(values, parameters),
    )


def _batching(values: Parsed, parameters: BatchingParameters | None) -> BatchingSettings:
    if not values.truth("enable_batching"):
        return NoBatching()
    chosen = parameters or BatchingParameters(thread_pool_name="model_server_batch_threads")
    return chosen.model_copy(
        update={"per_model": values.truth("enable_per_model_batching_parameters")}
    )


def metrics_path_from(text: str, path: str) -> str | None:
    """Return the metrics path from a ``--monitoring_config_file``; None if disabled."""
    config = parse_text_proto(text, config_message("MonitoringConfig")(), path)
    if not config.prometheus_config.enable:
        return None
    return config.prometheus_config.path or METRICS_PATH


def parse_channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    """Parse ``k=v,k=v`` as channel arguments; int32 values become numbers."""
    arguments = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"Cannot parse the gRPC channel argument {item}. Use name=value.")
        arguments.append((name, _channel_value(value)))
    return tuple(arguments)


def _channel_value(value: str) -> int | str:
    try:
        number = int(value) if value.isascii() and "_" not in value else None
    except ValueError:
        number = None
    return value if number is None or number not in _INT32 else number
