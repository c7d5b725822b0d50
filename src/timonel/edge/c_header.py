"""A model as a C header for microcontrollers, with the size of the tensor arena it needs.

The arena is measured with TensorFlow Lite for Microcontrollers itself, from the package
tflite-micro: its memory planner decides.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from timonel.storage import write_text

HEADER_FILE = "model.h"
_PER_LINE = 16
_SMALLEST_ARENA = 1 << 10
_LARGEST_ARENA = 1 << 30
_STEP = 64
"""Accuracy of the measurement, in bytes."""


def write_header(folder: Path, content: bytes, name: str, arena_bytes: int | None) -> None:
    """Write a flatbuffer as a constant array.

    Args:
        folder: The folder for ``model.h``.
        name: Name of the model; the names of the constants are made from it.
        arena_bytes: Size of the arena; None if it is unknown.
    """
    symbol = re.sub(r"\W+", "_", f"model_{name}")
    rows = (content[start : start + _PER_LINE] for start in range(0, len(content), _PER_LINE))
    body = ",\n  ".join(", ".join(f"0x{byte:02x}" for byte in row) for row in rows)
    arena = f"#define {symbol}_arena_bytes {arena_bytes}\n" if arena_bytes else ""
    write_text(
        folder / HEADER_FILE,
        f"// {name}: a LiteRT model of {len(content)} bytes.\n"
        "#pragma once\n"
        "#ifdef __cplusplus\n#define MODEL_ALIGN alignas(16)\n"
        "#else\n#define MODEL_ALIGN _Alignas(16)\n#endif\n\n"
        f"{arena}"
        f"static const unsigned int {symbol}_size = {len(content)};\n"
        f"MODEL_ALIGN static const unsigned char {symbol}[] = {{\n  {body}}};\n",
    )


def measured_arena(content: bytes) -> int | None:
    """Return the smallest arena of a model in bytes, to 64 bytes; None without tflite-micro.

    None as well if a microcontroller cannot compute the model.
    """
    if importlib.util.find_spec("tflite_micro") is None:
        return None
    from tflite_micro.python.tflite_micro import (  # type: ignore[import-not-found]  # noqa: PLC0415
        runtime,
    )

    def fits(size: int) -> bool:
        try:
            runtime.Interpreter.from_bytes(content, arena_size=size)
        except Exception:  # noqa: BLE001 - whatever the planner raises means no
            return False
        return True

    return smallest(fits)


def smallest(fits: Callable[[int], bool]) -> int | None:
    """Return the smallest size that fits, to 64 bytes; None if none does."""
    high = _SMALLEST_ARENA
    while not fits(high):
        high *= 2
        if high > _LARGEST_ARENA:
            return None
    low = 0 if high == _SMALLEST_ARENA else high // 2
    while high - low > _STEP:
        middle = (low + high) // 2 // _STEP * _STEP
        if middle == low:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
