"""Recognise TensorFlow's startup messages, which logs contain but terminals do not show."""

from __future__ import annotations

import re

# Log lines of TensorFlow's C++ code, before and after its logging is initialized.
_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} \d\d:\d\d:\d+"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    r"|To enable the following instructions: "
)


def is_noise(line: str) -> bool:
    """Tell whether a line is one of TensorFlow's own non-fatal log lines."""
    return _NOISE.match(line) is not None


def says_no_gpu(line: str) -> bool:
    """Tell whether a line reports CUDA error 303: no driver, no GPU."""
    return "failed call to cuInit" in line and "(303)" in line
