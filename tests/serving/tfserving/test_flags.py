from __future__ import annotations

import pytest

from timonel.serving.tfserving.flags import Flag, known_flags, parse, usage, with_variables

FLAGS = (
    Flag("port", "int32", 8500, "the port"),
    Flag("wait", "int64", -1, "microseconds"),
    Flag("part", "float", 0.0, "a part"),
    Flag("name", "string", "default", "a name"),
    Flag("fast", "bool", False, "faster"),
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"port": 8500, "wait": -1, "part": 0.0, "name": "default", "fast": False}),
        (["--port=1", "--port=2"], {"port": 2}),
        (["--wait=-60000000000"], {"wait": -60_000_000_000}),
        (["--port= +7"], {"port": 7}),
        (["--part=1e-3"], {"part": 0.001}),
        (["--part=.5"], {"part": 0.5}),
        (["--name="], {"name": ""}),
        (["--name=a=b --c"], {"name": "a=b --c"}),
        (["--fast"], {"fast": True}),
        (["--fast=true"], {"fast": True}),
        (["--fast", "--fast=false"], {"fast": False}),
    ],
)
def test_values(arguments, expected):
    parsed = parse(arguments, FLAGS)
    assert expected.items() <= parsed.values.items()
    assert parsed.unknown == ()
    assert parsed.errors == ()
    assert not parsed.wants_usage


@pytest.mark.parametrize(
    ("argument", "refusal"),
    [
        ("--port=", "Couldn't interpret value  for flag port."),
        ("--port=x", "Couldn't interpret value x for flag port."),
        ("--port=1.5", "Couldn't interpret value 1.5 for flag port."),
        ("--port=2147483648", "Couldn't interpret value 2147483648 for flag port."),
        ("--port=٣", "Couldn't interpret value ٣ for flag port."),
        ("--wait=9223372036854775808", "Couldn't interpret value 9223372036854775808 for flag"),
        ("--part=nope", "Couldn't interpret value nope for flag part."),
        ("--fast=1", "Couldn't interpret value =1 for flag fast."),
        ("--fast=", "Couldn't interpret value = for flag fast."),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(argument, refusal):
    parsed = parse([argument, "--name=n"], FLAGS)
    assert parsed.errors[0].startswith(refusal)
    assert parsed.wants_usage
    assert parsed.values["name"] == "n"


@pytest.mark.parametrize(
    ("arguments", "left_over"),
    [
        (["--unknown=1", "--port=2"], ("--unknown=1",)),
        (["--port", "9000"], ("--port", "9000")),
        (["-port=1"], ("-port=1",)),
        (["port=1"], ("port=1",)),
        (["--fast", "--", "--port=1"], ("--", "--port=1")),
    ],
)
def test_what_is_no_flag_is_left_over(arguments, left_over):
    parsed = parse(arguments, FLAGS)
    assert parsed.unknown == left_over
    assert not parsed.wants_usage


def test_usage_is_asked_for_by_help_as_the_first_thing_that_is_no_flag():
    assert parse(["--port=1", "--help"], FLAGS).wants_usage
    assert not parse(["x", "--help"], FLAGS).wants_usage
    text = usage("server", FLAGS)
    assert text.splitlines()[:3] == [
        "usage: server",
        "Flags:",
        "\t--port=8500                      \tint32\tthe port",
    ]
    assert '--name="default"' in text
    assert "--fast=false" in text
    assert "--part=0.000000" in text


def test_every_flag_of_tensorflow_serving_has_its_default():
    flags = {flag.name: flag.default for flag in known_flags(cores=2)}
    assert flags == {
        "port": 8500,
        "grpc_socket_path": "",
        "rest_api_port": 0,
        "rest_api_num_threads": 8,
        "rest_api_timeout_in_ms": 30000,
        "rest_api_enable_cors_support": False,
        "enable_batching": False,
        "allow_version_labels_for_unavailable_models": False,
        "batching_parameters_file": "",
        "enable_per_model_batching_parameters": False,
        "model_config_file": "",
        "model_config_file_poll_wait_seconds": 0,
        "model_name": "default",
        "model_base_path": "",
        "num_load_threads": 0,
        "num_unload_threads": 0,
        "max_num_load_retries": 5,
        "load_retry_interval_micros": 60_000_000,
        "file_system_poll_wait_seconds": 1,
        "flush_filesystem_caches": True,
        "tensorflow_session_parallelism": 0,
        "tensorflow_session_config_file": "",
        "tensorflow_intra_op_parallelism": 0,
        "tensorflow_inter_op_parallelism": 0,
        "use_alts_credentials": False,
        "ssl_config_file": "",
        "platform_config_file": "",
        "per_process_gpu_memory_fraction": 0.0,
        "saved_model_tags": "serve",
        "grpc_channel_arguments": "",
        "grpc_max_threads": 8,
        "enable_model_warmup": True,
        "num_request_iterations_for_warmup": 0,
        "version": False,
        "monitoring_config_file": "",
        "remove_unused_fields_from_bundle_metagraph": True,
        "prefer_tflite_model": False,
        "num_tflite_pools": 2,
        "num_tflite_interpreters_per_pool": 1,
        "enable_signature_method_name_check": False,
        "xla_cpu_compilation_enabled": False,
        "xla_gpu_compilation_enabled": False,
        "enable_profiler": True,
        "thread_pool_factory_config_file": "",
        "mixed_precision": "",
        "skip_initialize_tpu": False,
        "enable_grpc_healthcheck_service": False,
        "enable_serialization_as_tensor_content": False,
        "resource_preserving_models": "",
        "runtime": "tensorflow",
        "safe_loading": False,
        "allow_ops": "",
        "allow_python": "",
        "op_libraries": "",
        "model_cache": "",
        "model_cache_mib": 20480,
        "load_timeout_seconds": 0,
        "drain_seconds": 30,
    }


@pytest.mark.parametrize(
    ("environment", "arguments", "model"),
    [
        ({"MODEL_NAME": "digits"}, [], ("digits", "/models/digits")),
        ({"MODEL_BASE_PATH": "s3://bucket/m/"}, [], ("model", "s3://bucket/m/model")),
        ({"MODEL_NAME": "a", "MODEL_BASE_PATH": "/m"}, ["--port=1"], ("a", "/m/a")),
        ({}, [], ("default", "")),
        ({"MODEL_NAME": ""}, [], ("default", "")),
        ({"MODEL_NAME": "a"}, ["--model_base_path=/b"], ("default", "/b")),
        ({"MODEL_NAME": "a"}, ["--model_name=b"], ("b", "")),
        ({"MODEL_NAME": "a"}, ["--model_config_file=c"], ("default", "")),
    ],
)
def test_variables_name_the_model_if_no_flag_does(environment, arguments, model):
    values = with_variables(parse(arguments, known_flags(1)), environment).values
    assert (values["model_name"], values["model_base_path"]) == model
