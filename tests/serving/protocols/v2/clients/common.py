"""What the scripts of both clients ask for: arrays of every type, and the model's names for them.

The scripts run in an environment of their own, without timonel.
"""

from __future__ import annotations

import numpy as np

ARRAYS = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[0.1, -65504]], np.float16),
    "FP32": np.array([[0.1, 3e38]], np.float32),
    "FP64": np.array([[0.1, 1e300]], np.float64),
    "BYTES": np.array([[b"text", "é".encode()]], object),
}


def name_of(datatype: str) -> str:
    """Return the model's input for a type; its output is called ``<input>_out``."""
    return datatype.lower()


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless two arrays are the same; texts may have come as such."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.dtype == object:
        values = [v.encode() if isinstance(v, str) else v for v in found.reshape(-1).tolist()]
        assert values == expected.reshape(-1).tolist(), values
    else:
        assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
        assert np.array_equal(found, expected), (found, expected)
