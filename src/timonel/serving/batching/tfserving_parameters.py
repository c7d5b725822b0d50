"""Parse and validate BatchingParameters text as TensorFlow Serving does.

Wrapper fields are written ``max_batch_size { value: 128 }``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from timonel.serving.protos.described import config_message
from timonel.serving.protos.text import TextProtoError, parse_text_proto, read_text
from timonel.serving.settings.batching import BatchingParameters
from timonel.serving.status import invalid_argument

_LOG = logging.getLogger(__name__)
PER_MODEL_FILE = "batching_params.pbtxt"
_UNSIGNED = 2**64


def parse_parameters(text: str, path: str) -> BatchingParameters:
    """Parse a BatchingParameters text proto."""
    message = parse_text_proto(text, config_message("BatchingParameters")(), path)
    given: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            given[field.name] = tuple(value) if field.name == "allowed_batch_sizes" else value
        elif message.HasField(field.name):
            given[field.name] = value.value
    parameters = BatchingParameters(**given)
    if parameters.num_batch_threads < 1:
        raise invalid_argument(
            f"num_batch_threads must be positive; was {parameters.num_batch_threads}"
        )
    return parameters


def read_parameters(path: Path) -> BatchingParameters:
    """Read the file of ``--batching_parameters_file``."""
    return parse_parameters(read_text(str(path)), str(path))


def parameters_of_version(
    version: Path, parameters: BatchingParameters
) -> BatchingParameters | None:
    """Return the batching parameters of a version; None to turn batching off."""
    if not parameters.per_model:
        return parameters
    path = version / PER_MODEL_FILE
    if not path.is_file():
        return None
    try:
        own = read_parameters(path)
    except TextProtoError as error:
        _LOG.error("%s", error.diagnosis)
        raise
    return own.model_copy(
        update={
            "num_batch_threads": parameters.num_batch_threads,
            "thread_pool_name": parameters.thread_pool_name,
        }
    )


def check_queue(parameters: BatchingParameters) -> None:
    """Reject parameters with which no model can be loaded."""
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
