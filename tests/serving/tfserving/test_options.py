from __future__ import annotations

import pytest

from timonel.serving.settings.batching import BatchingParameters, NoBatching
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import METRICS_PATH
from timonel.serving.status import Code, StatusError
from timonel.serving.tfserving.flags import MEANINGLESS, known_flags, parse
from timonel.serving.tfserving.options import (
    metrics_path_from,
    parse_channel_arguments,
    translate,
)

CORES = 4
BASE = "--model_base_path=/models/m"


def translated(*arguments, **files):
    return translate(parse(arguments, known_flags(CORES)), CORES, **files)


def settings(*arguments, **files):
    return translated(*arguments, **files)[0]


def test_defaults_are_tensorflow_servings():
    made = settings(BASE)
    assert made.models == (ModelSettings(name="default", base_path="/models/m"),)
    assert (made.host, made.grpc_port, made.rest_port) == ("0.0.0.0", 8500, None)
    assert made.rest_host == "::"
    assert made.load == LoadSettings(
        poll_s=1,
        settle_s=1,
        threads=4,
        load_timeout_s=None,
        fail_fast=True,
        max_retries=5,
        retry_s=60,
        as_tfserving=True,
        labels_may_wait=False,
    )
    assert made.runtime == RuntimeSettings(
        batching=NoBatching(), interpreters=CORES, safe_loading=False
    )
    assert made.monitoring.metrics_path is None
    assert made.rest.timeout_s == 30
    assert not made.rest.extensions
    assert not made.rest.page
    assert not made.grpc.health
    assert not made.grpc.reflection
    assert translated(BASE)[1] == []


@pytest.mark.parametrize(
    ("flag", "path", "expected"),
    [
        ("--port=0 --grpc_socket_path=/s", "grpc_port", None),
        ("--grpc_socket_path=/s", "grpc.socket_path", "/s"),
        ("--rest_api_port=8501", "rest_port", 8501),
        ("--rest_api_port=8500", "rest_port", None),
        ("--enable_grpc_healthcheck_service", "grpc.health", True),
        ("--enable_serialization_as_tensor_content", "grpc.tensor_content", True),
        ("--enable_signature_method_name_check", "grpc.check_method_names", True),
        (
            "--grpc_channel_arguments=grpc.max_connection_age_ms=5,a=b",
            "grpc.channel_arguments",
            (("grpc.max_connection_age_ms", 5), ("a", "b")),
        ),
        ("--allow_version_labels_for_unavailable_models", "load.labels_may_wait", True),
        ("--file_system_poll_wait_seconds=0", "load.poll_s", 0),
        ("--file_system_poll_wait_seconds=-1", "load.poll_s", 0),
        ("--file_system_poll_wait_seconds=60", "load.settle_s", 1),
        ("--num_load_threads=3", "load.threads", 3),
        ("--load_timeout_seconds=90", "load.load_timeout_s", 90),
        ("--max_num_load_retries=0", "load.max_retries", 0),
        ("--load_retry_interval_micros=1500000", "load.retry_s", 1.5),
        ("--load_retry_interval_micros=-1", "load.retry_s", 0),
        ("--tensorflow_session_parallelism=3", "runtime.intra_op_threads", 3),
        ("--tensorflow_session_parallelism=3", "runtime.inter_op_threads", 3),
        ("--tensorflow_inter_op_parallelism=2", "runtime.inter_op_threads", 2),
        ("--saved_model_tags=serve,gpu", "runtime.tags", ("serve", "gpu")),
        ("--rest_api_timeout_in_ms=1500", "rest.timeout_s", 1.5),
        ("--rest_api_timeout_in_ms=0", "rest.timeout_s", None),
        ("--rest_api_enable_cors_support", "rest.cors", True),
        (
            "--enable_batching",
            "runtime.batching",
            BatchingParameters(thread_pool_name="model_server_batch_threads"),
        ),
        ("--enable_model_warmup=false", "load.warm_up", False),
        ("--num_request_iterations_for_warmup=3", "load.warm_up_iterations", 3),
        ("--ssl_config_file=/s", "access.ssl_config_file", "/s"),
        ("--drain_seconds=5", "drain_s", 5),
        ("--allow_python=a,b", "python.allow", ("a", "b")),
        ("--model_cache=/c", "load.model_cache", "/c"),
        ("--model_cache_mib=2", "load.model_cache_size", 2 << 20),
        ("--resource_preserving_models=a,b", "load.resource_preserving", ("a", "b")),
    ],
)
def test_flags(flag, path, expected):
    value = settings(BASE, *flag.split())
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected


def test_the_config_file_wins():
    models = (ModelSettings(name="a", base_path="/a"), ModelSettings(name="b", base_path="/b"))
    made = settings(
        "--model_config_file=/c",
        "--model_config_file_poll_wait_seconds=7",
        "--model_name=x",
        "--model_base_path=relative",
        models=models,
    )
    assert made.models == models
    assert (made.config_file, made.config_poll_s) == ("/c", 7)


def test_models_that_are_swapped_one_at_a_time():
    load = settings(BASE, "--resource_preserving_models=a").load
    assert load.unloads_first("a")
    assert not load.unloads_first("b")
    load = settings(BASE, "--resource_preserving_models=*").load
    assert load.unloads_first("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Both server_options.model_base_path and server_options.model_config_file are empty!"),
        (
            ["--model_base_path=models/m"],
            "Expected model default to have an absolute path or URI; got base_path()=models/m",
        ),
        (
            [BASE, "--port=0"],
            (
                "At least one of server_options.grpc_port or server_options.grpc_socket_path must "
                "be set."
            ),
        ),
        ([BASE, "--rest_api_port=65536"], "--rest_api_port must be between 0 and 65535; was 65536"),
        (
            [BASE, "--batching_parameters_file=/b"],
            (
                "server_options.batching_parameters_file is set without setting "
                "server_options.enable_batching to true."
            ),
        ),
        (
            [
                BASE,
                "--tensorflow_session_parallelism=1",
                "--tensorflow_intra_op_parallelism=1",
                "--tensorflow_inter_op_parallelism=1",
            ],
            (
                "Either configure server_options.tensorflow_session_parallelism or configure "
                "server_options.tensorflow_intra_op_parallelism and "
                "server_options.tensorflow_inter_op_parallelism, not all of them."
            ),
        ),
        (
            [BASE, "--grpc_channel_arguments=a"],
            "Cannot parse the gRPC channel argument a. Use name=value.",
        ),
    ],
)
def test_what_tensorflow_serving_does_not_start_with(arguments, message):
    with pytest.raises(StatusError) as caught:
        settings(*arguments)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


def test_encryption_that_is_asked_for_is_never_left_out():
    with pytest.raises(StatusError, match="ALTS is not available"):
        settings(BASE, "--use_alts_credentials")


@pytest.mark.parametrize("name", [*MEANINGLESS])
def test_a_flag_that_changes_nothing_says_so(name):
    flag = next(flag for flag in known_flags(CORES) if flag.name == name)
    value = "true" if flag.kind == "bool" else "1"
    remarks = translated(BASE, "--enable_batching", f"--{name}={value}")[1]
    assert [r for r in remarks if r.startswith(f"--{name} has no effect")]


def test_every_flag_does_something_or_says_that_it_does_not():
    """What is not in the tables of the mute changes the settings, or ends the program."""
    said = {*MEANINGLESS}
    ends = {"version", "use_alts_credentials"}
    other = {
        "bool": lambda default: "false" if default else "true",
        "int32": lambda default: str(default + 2),
        "int64": lambda default: str(default + 1),
        "float": lambda default: "0.5",
        "string": lambda default: "a=1" if default == "" else "other",
    }
    models = (ModelSettings(name="a", base_path="/a"),)
    for flag in known_flags(CORES):
        if flag.name in said | ends:
            continue
        if flag.name == "model_base_path":
            changed = settings("--model_base_path=/other")
        elif flag.name == "model_config_file":
            changed = settings("--model_config_file=/c", models=models)
        elif flag.name == "batching_parameters_file":
            parameters = BatchingParameters(max_batch_size=7)
            changed = settings(
                BASE, "--enable_batching", "--batching_parameters_file=/b", batching=parameters
            )
            assert changed.runtime.batching == parameters
        elif flag.name == "enable_per_model_batching_parameters":
            changed = settings(BASE, "--enable_batching", f"--{flag.name}")
            assert changed.runtime.batching.per_model
        elif flag.name == "monitoring_config_file":
            changed = settings(BASE, "--monitoring_config_file=/m", metrics_path="/metrics")
        else:
            changed = settings(BASE, f"--{flag.name}={other[flag.kind](flag.default)}")
        assert changed != settings(BASE), flag.name


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", METRICS_PATH),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ('prometheus_config { path: "/metrics" }', None),
        ("", None),
    ],
)
def test_the_file_says_where_metrics_are(text, path):
    assert metrics_path_from(text, "m.txt") == path


def test_what_is_no_text_proto_is_refused():
    with pytest.raises(StatusError) as caught:
        metrics_path_from("prometheus { }", "/etc/m.txt")
    assert str(caught.value) == "INVALID_ARGUMENT: Invalid protobuf file: '/etc/m.txt'"


def test_channel_arguments():
    assert parse_channel_arguments("") == ()
    assert parse_channel_arguments("a=1,b=x,c=-3,d=99999999999,e=1_0,f=g=h,h=") == (
        ("a", 1),
        ("b", "x"),
        ("c", -3),
        ("d", "99999999999"),
        ("e", "1_0"),
        ("f", "g=h"),
        ("h", ""),
    )
    for wrong in ("a", "a=1,b", "=1"):
        with pytest.raises(ValueError, match="Use name=value"):
            parse_channel_arguments(wrong)
