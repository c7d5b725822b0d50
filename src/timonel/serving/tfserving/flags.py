"""Flags of ``tensorflow_model_server``, timonel's own flags, and their parser. Pure.

A flag is ``--name=value``; a boolean also ``--name`` alone. As in TensorFlow, unknown arguments are
collected and do not stop the program; a known flag with an invalid value does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int32", "int64", "float", "string"]

_INTEGER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BITS = {"int32": 32, "int64": 64}
_BOOLEANS = {"": True, "=true": True, "=false": False}
_MODEL_FLAGS = {"model_name", "model_base_path", "model_config_file"}


@dataclass(frozen=True)
class Flag:
    """A known flag."""

    name: str
    kind: Kind
    default: Value
    help: str


@dataclass(frozen=True)
class Parsed:
    """A parsed command line: all flags, those given, other arguments, and messages."""

    values: Mapping[str, Value]
    given: frozenset[str]
    unknown: tuple[str, ...]
    errors: tuple[str, ...]

    def integer(self, name: str) -> int:
        """Return the value of an integer flag."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def truth(self, name: str) -> bool:
        """Return the value of a boolean flag."""
        return self.values[name] is True

    def text(self, name: str) -> str:
        """Return the value of a flag as text."""
        return str(self.values[name])

    def items(self, name: str) -> tuple[str, ...]:
        """Return the value of a flag, split at commas."""
        return tuple(filter(None, self.text(name).split(",")))

    @property
    def wants_usage(self) -> bool:
        """Whether the program prints its usage and exits."""
        return bool(self.errors) or self.unknown[:1] == ("--help",)


def _bool(name: str, help_: str, *, default: bool = False) -> Flag:
    return Flag(name, "bool", default, help_)


def _string(name: str, help_: str, *, default: str = "") -> Flag:
    return Flag(name, "string", default, help_)


def parse(arguments: Sequence[str], flags: Sequence[Flag]) -> Parsed:
    """Parse a command line."""
    known = {flag.name: flag for flag in flags}
    values: dict[str, Value] = {flag.name: flag.default for flag in flags}
    given: set[str] = set()
    unknown: list[str] = []
    errors: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            unknown += arguments[position:]
            break
        name, equals, text = argument.removeprefix("--").partition("=")
        flag = known.get(name) if argument.startswith("--") else None
        if flag is None or not (equals or flag.kind == "bool"):
            unknown.append(argument)
            continue
        content = equals + text if flag.kind == "bool" else text
        value = _read(flag, content)
        if value is None:
            errors.append(f"Couldn't interpret value {content} for flag {name}.")
            continue
        values[name] = value
        given.add(name)
    return Parsed(values, frozenset(given), tuple(unknown), tuple(errors))


def with_variables(parsed: Parsed, environment: Mapping[str, str]) -> Parsed:
    """Take the model from the variables of TensorFlow Serving's image, if no flag names one."""
    given = [environment.get(name) for name in ("MODEL_NAME", "MODEL_BASE_PATH")]
    if parsed.given & _MODEL_FLAGS or not any(given):
        return parsed
    name, folder = given[0] or "model", given[1] or "/models"
    model = {"model_name": name, "model_base_path": f"{folder.rstrip('/')}/{name}"}
    return replace(parsed, values={**parsed.values, **model})


def usage(program: str, flags: Sequence[Flag]) -> str:
    """Return the usage text: all flags with their defaults."""
    lines = [f"usage: {program}", "Flags:"]
    lines += [
        f"\t{f'--{flag.name}={_shown(flag)}':<33}\t{flag.kind}\t{flag.help}" for flag in flags
    ]
    return "\n".join(lines) + "\n"


def _read(flag: Flag, text: str) -> Value | None:
    if flag.kind == "bool":
        return _BOOLEANS.get(text)
    if flag.kind == "string":
        return text
    if flag.kind == "float":
        return float(text) if _FLOAT.fullmatch(text) else None
    if not _INTEGER.fullmatch(text):
        return None
    number, half = int(text), 1 << (_BITS[flag.kind] - 1)
    return number if -half <= number < half else None


def _shown(flag: Flag) -> str:
    if isinstance(flag.default, bool):
        return "true" if flag.default else "false"
    if isinstance(flag.default, str):
        return f'"{flag.default}"'
    return f"{flag.default:f}" if isinstance(flag.default, float) else str(flag.default)


_NO_GPU = "models run on the CPU"

MEANINGLESS: Mapping[str, str] = {
    "rest_api_num_threads": "one event loop serves REST",
    "grpc_max_threads": "one event loop serves gRPC",
    "num_unload_threads": "each version is unloaded in a thread of its own",
    "flush_filesystem_caches": "the operating system manages file caches",
    "platform_config_file": "the only platform is tensorflow; batching and session flags apply",
    "tensorflow_session_config_file": "session options have flags of their own",
    "per_process_gpu_memory_fraction": _NO_GPU,
    "remove_unused_fields_from_bundle_metagraph": "unneeded parts of a model are never kept",
    "num_tflite_interpreters_per_pool": "one interpreter computes a request",
    "xla_cpu_compilation_enabled": "models run as they were exported",
    "xla_gpu_compilation_enabled": _NO_GPU,
    "enable_profiler": "ProfilerService is not available",
    "thread_pool_factory_config_file": "TensorFlow's own threads are used",
    "mixed_precision": "models run as they were exported",
    "skip_initialize_tpu": "TPUs are not supported",
}
"""Flags that are accepted without effect, and the reasons."""


def known_flags(cores: int) -> tuple[Flag, ...]:
    """Return all flags: those of TensorFlow Serving, then timonel's own."""
    return (
        Flag("port", "int32", 8500, "TCP port for gRPC; 0 disables it"),
        _string("grpc_socket_path", "Unix socket for gRPC"),
        Flag("rest_api_port", "int32", 0, "TCP port for REST; 0 disables it"),
        Flag("rest_api_num_threads", "int32", 4 * cores, "threads for REST"),
        Flag("rest_api_timeout_in_ms", "int32", 30000, "time limit of a REST request"),
        _bool("rest_api_enable_cors_support", "send CORS headers"),
        _bool("enable_batching", "batch requests"),
        _bool(
            "allow_version_labels_for_unavailable_models",
            "allow new labels for versions that are not loaded",
        ),
        _string("batching_parameters_file", "BatchingParameters as text proto"),
        _bool("enable_per_model_batching_parameters", "read batching_params.pbtxt of each version"),
        _string("model_config_file", "ModelServerConfig as text proto"),
        Flag(
            "model_config_file_poll_wait_seconds",
            "int32",
            0,
            "interval for polling model_config_file; 0 reads it once",
        ),
        _string("model_name", "model name, without model_config_file", default="default"),
        _string("model_base_path", "folder with the model's versions"),
        Flag("num_load_threads", "int32", 0, "parallel loads of versions; 0: the number of cores"),
        Flag("num_unload_threads", "int32", 0, "parallel unloads of versions"),
        Flag("max_num_load_retries", "int32", 5, "retries after a failed load"),
        Flag("load_retry_interval_micros", "int64", 60_000_000, "interval between retries"),
        Flag(
            "file_system_poll_wait_seconds",
            "int32",
            1,
            "interval for polling new versions; 0 polls once",
        ),
        _bool("flush_filesystem_caches", "flush file system caches after loading", default=True),
        Flag("tensorflow_session_parallelism", "int64", 0, "threads of a session, of both kinds"),
        _string("tensorflow_session_config_file", "ConfigProto as text proto"),
        Flag("tensorflow_intra_op_parallelism", "int64", 0, "threads within an operation"),
        Flag("tensorflow_inter_op_parallelism", "int64", 0, "operations in parallel"),
        _bool("use_alts_credentials", "secure gRPC with Google's ALTS"),
        _string("ssl_config_file", "SSLConfig as text proto, for gRPC"),
        _string("platform_config_file", "PlatformConfigMap as text proto"),
        Flag("per_process_gpu_memory_fraction", "float", 0.0, "fraction of GPU memory to use"),
        _string("saved_model_tags", "tags of the graph to load, comma-separated", default="serve"),
        _string("grpc_channel_arguments", "name=value, comma-separated"),
        Flag("grpc_max_threads", "int32", 4 * cores, "threads for gRPC"),
        _bool("enable_model_warmup", "replay a version's warm-up requests", default=True),
        Flag(
            "num_request_iterations_for_warmup",
            "int32",
            0,
            "replays of each warm-up request; 0: one",
        ),
        _bool("version", "print versions and exit"),
        _string("monitoring_config_file", "MonitoringConfig as text proto"),
        _bool(
            "remove_unused_fields_from_bundle_metagraph",
            "drop unneeded parts of a model's metadata",
            default=True,
        ),
        _bool("prefer_tflite_model", "use model.tflite if present"),
        Flag("num_tflite_pools", "int32", cores, "interpreters of a TensorFlow Lite model"),
        Flag("num_tflite_interpreters_per_pool", "int32", 1, "interpreters in a pool"),
        _bool(
            "enable_signature_method_name_check", "reject signatures declared for another method"
        ),
        _bool("xla_cpu_compilation_enabled", "compile with XLA"),
        _bool("xla_gpu_compilation_enabled", "compile with XLA for GPUs"),
        _bool("enable_profiler", "provide ProfilerService", default=True),
        _string("thread_pool_factory_config_file", "ThreadPoolFactoryConfig"),
        _string("mixed_precision", 'only "bfloat16"'),
        _bool("skip_initialize_tpu", "do not initialise a TPU"),
        _bool("enable_grpc_healthcheck_service", "provide grpc.health.v1"),
        _bool(
            "enable_serialization_as_tensor_content", "use tensor_content in gRPC Predict responses"
        ),
        *(replace(flag, help=f"timonel only: {flag.help}") for flag in _own_flags()),
    )


def _own_flags() -> tuple[Flag, ...]:
    return (
        _string(
            "resource_preserving_models",
            "models to unload before their next version, comma-separated; *: all",
        ),
        _string(
            "runtime", "runtime; model=runtime for one model, comma-separated", default="tensorflow"
        ),
        _bool("safe_loading", "reject models with unsafe operations"),
        _string("allow_python", "models that may contain Python, comma-separated; *: all"),
        _string(
            "allow_ops",
            "operations that safe loading allows, comma-separated; model=operation for one model",
        ),
        _string("op_libraries", "packages or .so files with operations of models, comma-separated"),
        _string("model_cache", "folder for versions from buckets; default: the user's cache"),
        Flag("model_cache_mib", "int64", 20480, "size limit of unused versions in the cache"),
        Flag("load_timeout_seconds", "int32", 0, "time limit of a load; 0: none"),
        Flag("drain_seconds", "int32", 30, "drain time after SIGTERM"),
    )
