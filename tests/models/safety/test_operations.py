from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

from timonel.models.safety.operations import reason_against

_LIST_OPERATIONS = """
from timonel.models.safety.op_libraries import registered_operations
from timonel.models.safety.operations import harmless_of
print(*harmless_of(registered_operations()), sep="\\n")
"""


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("PyFunc", "runs Python code"),
        ("PyFuncStateless", "runs Python code"),
        ("WholeFileReaderV2", "reads files"),
        ("ImmutableConst", "reads files"),
        ("TFRecordDatasetV2", "reads files"),
        ("SnapshotDatasetV2", "reads and writes files"),
        ("CreateSummaryFileWriter", "writes files"),
        ("DebugIdentityV3", "writes files or uses the network"),
        ("RpcClient", "uses the network"),
        ("CollectiveReduceV2", "uses the network"),
        ("DataServiceDatasetV4", "uses the network"),
        ("DatasetFromGraph", "runs hidden code"),
        ("XlaCallModule", "runs hidden code"),
        ("QueueDequeueV2", "may wait for ever"),
        ("Abort", "ends the process"),
        ("_Send", "belongs inside TensorFlow"),
        ("TestStringOutput", "is not known to be harmless"),
        ("SimpleMLInferenceOp", "is an operation of tensorflow_decision_forests"),
        ("TFText>RoundRobinTrim", "is an operation of tensorflow_text"),
        ("SentencepieceOp", "is an operation of tensorflow_text"),
    ],
)
def test_what_speaks_against_operations(operation, reason):
    assert reason_against(operation) == reason


@pytest.mark.parametrize(
    "operation",
    ["Conv2D", "Conv2DBackpropInput", "DecodeJpeg", "DeserializeSparse", "HashTableV2", "If",
     "ParseExampleV2", "Print", "ReadVariableOp", "ResourceGather", "StatefulPartitionedCall",
     "TensorListReserve", "While"],
)  # fmt: skip
def test_what_models_are_made_of_is_harmless(operation):
    assert reason_against(operation) is None


@pytest.mark.process
def test_the_list_is_that_of_tensorflows_registry():
    """A release with new operations: look at what it has, then run scripts/list_operations.py."""
    # In a process of its own: converters for LiteRT register more in theirs.
    found = subprocess.run(
        [sys.executable, "-c", _LIST_OPERATIONS], check=True, capture_output=True, text=True
    )
    text = resources.files("timonel.models.safety").joinpath("harmless.txt").read_text()
    listed = [line for line in text.splitlines() if not line.startswith("#")]
    assert listed == found.stdout.splitlines()
