from __future__ import annotations

import logging

import pytest

from timonel.serving.batching.tfserving_parameters import (
    check_queue,
    parameters_of_version,
    parse_parameters,
    read_parameters,
)
from timonel.serving.protos.text import TextProtoError
from timonel.serving.settings.batching import BatchingParameters, cores
from timonel.serving.status import Code, StatusError

EVERYTHING = """
# sizes
max_batch_size { value: 16 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 7 }
num_batch_threads { value: 3 }
thread_pool_name { value: "mine" }
allowed_batch_sizes: 8
allowed_batch_sizes: 16
pad_variable_length_inputs: true
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 8 }
"""


def test_every_field_is_read():
    assert parse_parameters(EVERYTHING, "p") == BatchingParameters(
        max_batch_size=16,
        batch_timeout_micros=2000,
        max_enqueued_batches=7,
        num_batch_threads=3,
        thread_pool_name="mine",
        allowed_batch_sizes=(8, 16),
        pad_variable_length_inputs=True,
        enable_large_batch_splitting=True,
        max_execution_batch_size=8,
    )


def test_defaults_are_the_originals():
    parameters = parse_parameters("", "p")
    assert parameters == BatchingParameters()
    assert parameters.max_batch_size == 1000
    assert parameters.batch_timeout_micros == 0
    assert parameters.max_enqueued_batches == 10
    assert parameters.num_batch_threads == cores()
    assert parameters.thread_pool_name == "batch_threads"


@pytest.mark.parametrize("text", ["max_batch_size: 3", "nonsense { value: 1 }", "max_batch_size {"])
def test_another_text_is_refused_as_by_tensorflow_serving(text, tmp_path, caplog):
    (file := tmp_path / "batching_params.pbtxt").write_text(text)
    with caplog.at_level(logging.ERROR), pytest.raises(TextProtoError) as told:
        parameters_of_version(tmp_path, BatchingParameters(per_model=True))
    assert told.value.code is Code.INVALID_ARGUMENT
    assert told.value.message == f"Invalid protobuf file: '{file}'"
    diagnosis = "Error parsing text-format tensorflow.serving.BatchingParameters: 1:"
    assert told.value.diagnosis.startswith(diagnosis)
    assert diagnosis in caplog.text


def test_no_threads_and_no_file(tmp_path):
    with pytest.raises(StatusError, match="num_batch_threads must be positive; was 0"):
        parse_parameters("num_batch_threads { value: 0 }", "p")
    with pytest.raises(StatusError) as told:
        read_parameters(tmp_path / "none")
    assert told.value.code is Code.NOT_FOUND
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(StatusError, match="Invalid protobuf file"):
        read_parameters(tmp_path / "binary")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"allowed_batch_sizes": (2, 4)},
            (
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; "
                "expected 1000"
            ),
        ),
        ({"max_batch_size": 0}, "input_batch_size_limit must be positive; was 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be non-negative; was -1"),
        (
            {"enable_large_batch_splitting": True, "max_enqueued_batches": 0},
            "max_enqueued_batches must be positive; was 0",
        ),
        (
            {"enable_large_batch_splitting": True, "max_execution_batch_size": 1001},
            (
                "When enable_large_batch_splitting is true, input_batch_size_limit must be "
                "greater than or equal to max_execution_batch_size.110001001"
            ),
        ),
        (
            {"enable_large_batch_splitting": True, "max_execution_batch_size": 0},
            "max_execution_batch_size must be positive; was 0",
        ),
    ],
)
def test_what_no_model_can_be_loaded_with(given, message):
    with pytest.raises(StatusError) as told:
        check_queue(BatchingParameters(**given))
    assert told.value.code is Code.INVALID_ARGUMENT
    assert told.value.message == message


def test_what_is_ignored_without_splitting():
    check_queue(BatchingParameters(max_enqueued_batches=0, max_execution_batch_size=5000))
    check_queue(BatchingParameters(max_batch_size=-1))


def test_a_version_has_its_own_sizes_but_the_servers_threads(tmp_path):
    server = BatchingParameters(max_batch_size=5, num_batch_threads=2)
    assert parameters_of_version(tmp_path, server) is server
    server = server.model_copy(update={"per_model": True})
    assert parameters_of_version(tmp_path, server) is None
    (tmp_path / "batching_params.pbtxt").write_text(EVERYTHING)
    own = parameters_of_version(tmp_path, server)
    assert own is not None
    assert (own.max_batch_size, own.num_batch_threads) == (16, 2)
    assert own.thread_pool_name == "batch_threads"
