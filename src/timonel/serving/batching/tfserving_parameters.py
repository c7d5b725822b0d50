"""Parse and validate BatchingParameters text as TensorFlow Serving does.

The message is defined here, because the package of TensorFlow Serving's protos lacks it. Wrapper
fields are written ``max_batch_size { value: 128 }``.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from timonel.serving.settings.batching import BatchingParameters
from timonel.serving.status import invalid_argument, not_found

_LOG = logging.getLogger(__name__)
_NAME = "tensorflow.serving.BatchingParameters"
_FIELDS = (
    ("max_batch_size", "Int64Value"),
    ("batch_timeout_micros", "Int64Value"),
    ("max_enqueued_batches", "Int64Value"),
    ("num_batch_threads", "Int64Value"),
    ("thread_pool_name", "StringValue"),
    ("allowed_batch_sizes", "int64"),
    ("pad_variable_length_inputs", "bool"),
    ("enable_large_batch_splitting", "BoolValue"),
    ("max_execution_batch_size", "Int64Value"),
)
PER_MODEL_FILE = "batching_params.pbtxt"
_UNSIGNED = 2**64


def parse_parameters(text: str, path: str) -> BatchingParameters:
    """Parse a BatchingParameters text proto.

    Args:
        text: The file's content.
        path: The file's path, for error messages.

    Raises:
        StatusError: The text is invalid, or sets no threads.
    """
    message = _message_type()()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        # Users look for this line: TensorFlow Serving's protobuf library logs it.
        _LOG.error("Error parsing text-format %s: %s", _NAME, error)
        raise invalid_argument(f"Invalid protobuf file: '{path}'") from error
    given: dict[str, Any] = {}
    for name, kind in _FIELDS:
        value = getattr(message, name)
        if kind.endswith("Value"):
            if message.HasField(name):
                given[name] = value.value
        else:
            given[name] = tuple(value) if name == "allowed_batch_sizes" else value
    parameters = BatchingParameters(**given)
    check_threads(parameters)
    return parameters


def read_parameters(path: Path) -> BatchingParameters:
    """Read the file of ``--batching_parameters_file``.

    Raises:
        StatusError: The file does not exist, or is not a BatchingParameters text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise not_found(f"{path}; {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"Invalid protobuf file: '{path}'") from error
    return parse_parameters(text, str(path))


def parameters_of_version(
    version: Path, parameters: BatchingParameters
) -> BatchingParameters | None:
    """Return the batching parameters of a version; None to turn batching off.

    Args:
        version: The version's folder.
        parameters: The server's parameters.

    Raises:
        StatusError: The version's own file cannot be read.
    """
    if not parameters.per_model:
        return parameters
    path = version / PER_MODEL_FILE
    if not path.is_file():
        return None
    own = read_parameters(path)
    return own.model_copy(
        update={
            "num_batch_threads": parameters.num_batch_threads,
            "thread_pool_name": parameters.thread_pool_name,
        }
    )


def check_threads(parameters: BatchingParameters) -> None:
    """Reject parameters with which a server cannot start.

    Raises:
        StatusError: The number of threads is not positive.
    """
    if parameters.num_batch_threads < 1:
        raise invalid_argument(
            f"num_batch_threads must be positive; was {parameters.num_batch_threads}"
        )


def check_queue(parameters: BatchingParameters) -> None:
    """Reject parameters with which no model can be loaded.

    Raises:
        StatusError: Sizes or times are invalid or contradict each other.
    """
    largest = parameters.max_batch_size
    if parameters.allowed_batch_sizes and parameters.allowed_batch_sizes[-1] != largest:
        raise invalid_argument(
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
            f"{parameters.allowed_batch_sizes[-1]}; expected {largest}"
        )
    if largest == 0:
        raise invalid_argument("input_batch_size_limit must be positive; was 0")
    if parameters.batch_timeout_micros < 0:
        raise invalid_argument(
            f"batch_timeout_micros must be non-negative; was {parameters.batch_timeout_micros}"
        )
    if parameters.enable_large_batch_splitting:
        _check_splitting(parameters)


def _check_splitting(parameters: BatchingParameters) -> None:
    if parameters.max_enqueued_batches == 0:
        raise invalid_argument("max_enqueued_batches must be positive; was 0")
    largest, executed = parameters.max_batch_size, parameters.max_execution_batch_size
    if executed is None:
        return
    if executed <= 0:
        raise invalid_argument(f"max_execution_batch_size must be positive; was {executed}")
    if executed > unsigned(largest):
        # TensorFlow Serving's message lacks separators too.
        raise invalid_argument(
            "When enable_large_batch_splitting is true, input_batch_size_limit must be greater "
            f"than or equal to max_execution_batch_size.1{largest}{executed}"
        )


def unsigned(number: int) -> int:
    """Convert a number to C++'s ``size_t``: negative ones become huge."""
    return number % _UNSIGNED


@functools.cache
def _message_type() -> Any:
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/batching_parameters.proto",
        package=_NAME.rpartition(".")[0],
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    message = file.message_type.add(name=_NAME.rpartition(".")[2])
    for number, (name, kind) in enumerate(_FIELDS, 1):
        field = message.field.add(name=name, number=number, label=proto.LABEL_OPTIONAL)
        if kind.endswith("Value"):
            field.type = proto.TYPE_MESSAGE
            field.type_name = f".google.protobuf.{kind}"
        elif kind == "bool":
            field.type = proto.TYPE_BOOL
        else:
            field.type, field.label = proto.TYPE_INT64, proto.LABEL_REPEATED
    # A separate pool: TensorFlow Serving's protos, if loaded, may define the same name.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))
