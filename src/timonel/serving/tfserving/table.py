"""Flags of ``tensorflow_model_server`` with its defaults, and additional flags of timonel."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.serving.tfserving.flags import Flag

_NO_GPU = "models are computed on the processor"

MEANINGLESS: Mapping[str, str] = {
    "rest_api_num_threads": "one event loop answers REST, and never runs out of threads",
    "grpc_max_threads": "one event loop answers gRPC, and never runs out of threads",
    "flush_filesystem_caches": "files are read once, and their caches are the system's business",
    "platform_config_file": "there is one platform, tensorflow; batching and session flags hold",
    "tensorflow_session_config_file": "sessions are set by the flags of their own",
    "per_process_gpu_memory_fraction": _NO_GPU,
    "remove_unused_fields_from_bundle_metagraph": "what is not needed of a model is not kept",
    "num_tflite_interpreters_per_pool": "a request is computed by one interpreter",
    "xla_cpu_compilation_enabled": "models run as they were exported",
    "xla_gpu_compilation_enabled": _NO_GPU,
    "enable_profiler": "there is no ProfilerService",
    "thread_pool_factory_config_file": "TensorFlow's own threads are used",
    "mixed_precision": "models run as they were exported",
    "skip_initialize_tpu": "there is no TPU to initialise",
}
"""Flags that are accepted without effect, and the reasons."""


def flags(cores: int) -> tuple[Flag, ...]:
    """Return all flags.

    Args:
        cores: The processors of this machine; some defaults depend on them.
    """
    return (
        Flag("port", "int32", 8500, "TCP port to listen on for gRPC; 0 for none"),
        Flag("grpc_socket_path", "string", "", "Unix socket to listen on for gRPC"),
        Flag("rest_api_port", "int32", 0, "port to listen on for REST; 0 for none"),
        Flag("rest_api_num_threads", "int32", 4 * cores, "threads for REST"),
        Flag("rest_api_timeout_in_ms", "int32", 30000, "time that a REST request may compute"),
        Flag("rest_api_enable_cors_support", "bool", False, "answer with CORS headers"),
        Flag("enable_batching", "bool", False, "compute requests together"),
        Flag(
            "allow_version_labels_for_unavailable_models",
            "bool",
            False,
            "accept new labels for versions that are not loaded",
        ),
        Flag("batching_parameters_file", "string", "", "BatchingParameters as text proto"),
        Flag(
            "enable_per_model_batching_parameters",
            "bool",
            False,
            "read batching_params.pbtxt of each version",
        ),
        Flag("model_config_file", "string", "", "ModelServerConfig as text proto"),
        Flag(
            "model_config_file_poll_wait_seconds",
            "int32",
            0,
            "time between two looks at model_config_file; 0 for one look",
        ),
        Flag("model_name", "string", "default", "name of the model, without model_config_file"),
        Flag("model_base_path", "string", "", "folder of its versions"),
        Flag("num_load_threads", "int32", 0, "versions that load at the same time; 0 for cores"),
        Flag("num_unload_threads", "int32", 0, "versions unloaded at the same time; 0 for one"),
        Flag("max_num_load_retries", "int32", 5, "attempts after the first one failed"),
        Flag("load_retry_interval_micros", "int64", 60_000_000, "time between two attempts"),
        Flag(
            "file_system_poll_wait_seconds",
            "int32",
            1,
            "time between two looks for new versions; 0 for one look",
        ),
        Flag("flush_filesystem_caches", "bool", True, "flush file system caches after loading"),
        Flag("tensorflow_session_parallelism", "int64", 0, "threads of a session, both kinds"),
        Flag("tensorflow_session_config_file", "string", "", "ConfigProto as text proto"),
        Flag("tensorflow_intra_op_parallelism", "int64", 0, "threads within an operation"),
        Flag("tensorflow_inter_op_parallelism", "int64", 0, "operations at the same time"),
        Flag("use_alts_credentials", "bool", False, "secure gRPC with Google's ALTS"),
        Flag("ssl_config_file", "string", "", "SSLConfig as text proto, for gRPC"),
        Flag("platform_config_file", "string", "", "PlatformConfigMap as text proto"),
        Flag("per_process_gpu_memory_fraction", "float", 0.0, "part of a GPU's memory to take"),
        Flag("saved_model_tags", "string", "serve", "tags of the graph to load, with commas"),
        Flag("grpc_channel_arguments", "string", "", "name=value, with commas"),
        Flag("grpc_max_threads", "int32", 4 * cores, "threads for gRPC"),
        Flag("enable_model_warmup", "bool", True, "replay a version's warm-up requests"),
        Flag("num_request_iterations_for_warmup", "int32", 0, "times each is replayed; 0 for one"),
        Flag("version", "bool", False, "print versions and end"),
        Flag("monitoring_config_file", "string", "", "MonitoringConfig as text proto"),
        Flag(
            "remove_unused_fields_from_bundle_metagraph",
            "bool",
            True,
            "keep no more of a model's description than is needed",
        ),
        Flag("prefer_tflite_model", "bool", False, "use model.tflite where there is one"),
        Flag("num_tflite_pools", "int32", cores, "interpreters of a TensorFlow Lite model"),
        Flag("num_tflite_interpreters_per_pool", "int32", 1, "interpreters in a pool"),
        Flag(
            "enable_signature_method_name_check",
            "bool",
            False,
            "refuse signatures that are declared for another method",
        ),
        Flag("xla_cpu_compilation_enabled", "bool", False, "compile with XLA"),
        Flag("xla_gpu_compilation_enabled", "bool", False, "compile with XLA, for GPUs"),
        Flag("enable_profiler", "bool", True, "offer the ProfilerService"),
        Flag("thread_pool_factory_config_file", "string", "", "ThreadPoolFactoryConfig"),
        Flag("mixed_precision", "string", "", 'only "bfloat16"'),
        Flag("skip_initialize_tpu", "bool", False, "do not initialise a TPU"),
        Flag("enable_grpc_healthcheck_service", "bool", False, "offer grpc.health.v1"),
        Flag(
            "enable_serialization_as_tensor_content",
            "bool",
            False,
            "answer Predict over gRPC with tensor_content",
        ),
        Flag(
            "resource_preserving_models",
            "string",
            "",
            "timonel's own: models whose old version is unloaded before the new one is loaded, "
            "with commas; * for all",
        ),
        Flag(
            "runtime",
            "string",
            "tensorflow",
            "timonel's own: what computes; with commas, model=runtime for one model",
        ),
        Flag(
            "safe_loading",
            "bool",
            False,
            "timonel's own: refuse models that could do more than compute",
        ),
        Flag(
            "allow_python",
            "string",
            "",
            "timonel's own: models whose versions may bring Python, with commas; * for all",
        ),
        Flag(
            "hooks",
            "string",
            "",
            "timonel's own: files of Python around models, with commas; model=file for one model",
        ),
        Flag(
            "allow_ops",
            "string",
            "",
            "timonel's own: operations that safe loading trusts, with commas; model=operation for "
            "one model",
        ),
        Flag(
            "rest_api_enable_page",
            "bool",
            False,
            "timonel's own: a page for people at / of the REST port, and /openapi.json",
        ),
        Flag(
            "model_cache",
            "string",
            "",
            "timonel's own: folder for versions from buckets; by default in the user's cache",
        ),
        Flag(
            "model_cache_mib",
            "int64",
            20480,
            "timonel's own: how much may be kept there that is not in use",
        ),
        Flag(
            "hang_timeout_seconds",
            "int32",
            0,
            "timonel's own: silence after which a process of a version that owes an answer is "
            "started again; 0: never",
        ),
        Flag("drain_seconds", "int32", 30, "timonel's own: time to answer in after SIGTERM"),
    )
