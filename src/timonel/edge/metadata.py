"""LiteRT's model metadata: what mobile libraries read about inputs, outputs and labels.

The tables are those of ``metadata_schema.fbs`` of TensorFlow Lite Support. The package that writes
them, tflite-support, has no release for current versions of NumPy. Labels are a file in a zip
archive behind the flatbuffer, which readers of either format ignore.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from timonel.edge.report import LABELS_FILE, InputLayout, TensorFacts, labels_text

_NAME = "TFLITE_METADATA"
_IDENTIFIER = b"M001"
_IMAGE_PROPERTIES = 2  # of the union ContentProperties
_NORMALIZATION_OPTIONS = 1  # of the union ProcessUnitOptions
_AXIS_LABELS = 2  # of the enumeration AssociatedFileType
_COLOR_SPACES = {1: 2, 3: 1}
"""Grayscale and RGB by number of channels."""


def with_metadata(
    content: bytes,
    *,
    name: str,
    layout: InputLayout,
    inputs: Sequence[TensorFacts],
    outputs: Sequence[TensorFacts],
    labels: Sequence[str] | None,
) -> bytes:
    """Return a flatbuffer with metadata.

    Args:
        outputs: The outputs; the first one has the labels.
        labels: Labels in the order of the scores.
    """
    model = schema.ModelT.InitFromPackedBuf(bytearray(content), 0)
    buffer = schema.BufferT()
    buffer.data = _metadata(name, layout, inputs, outputs, has_labels=bool(labels))
    model.buffers.append(buffer)
    entry = schema.MetadataT()
    entry.name, entry.buffer = _NAME, len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(content) + 4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    packed = bytes(builder.Output())
    if not labels:
        return packed
    file = io.BytesIO(packed)
    with zipfile.ZipFile(file, "a") as archive:
        # A fixed date: the same model gives the same bytes.
        archive.writestr(zipfile.ZipInfo(LABELS_FILE), labels_text(labels))
    return file.getvalue()


def _metadata(
    name: str,
    layout: InputLayout,
    inputs: Sequence[TensorFacts],
    outputs: Sequence[TensorFacts],
    *,
    has_labels: bool,
) -> bytes:
    builder = flatbuffers.Builder(1024)
    given = [_input(builder, each, layout) for each in inputs]
    returned = [
        _tensor(builder, each.name, labels=has_labels and index == 0)
        for index, each in enumerate(outputs)
    ]
    subgraph = _table(builder, {2: _vector(builder, given), 3: _vector(builder, returned)})
    root = _table(builder, {0: builder.CreateString(name), 3: _vector(builder, [subgraph])})
    builder.Finish(root, _IDENTIFIER)
    return bytes(builder.Output())


def _input(builder: Any, facts: TensorFacts, layout: InputLayout) -> int:
    if layout != "image" or facts.shape[-1] not in _COLOR_SPACES:
        return _tensor(builder, facts.name)
    builder.StartObject(2)
    builder.PrependInt8Slot(0, _COLOR_SPACES[facts.shape[-1]], 0)
    image = builder.EndObject()
    content = _table(builder, {1: image}, {0: _IMAGE_PROPERTIES})
    # The model scales the pixels itself.
    options = _table(builder, {0: _floats(builder, [0.0]), 1: _floats(builder, [1.0])})
    unit = _table(builder, {1: options}, {0: _NORMALIZATION_OPTIONS})
    limits = _table(builder, {0: _floats(builder, [255.0]), 1: _floats(builder, [0.0])})
    return _tensor(builder, facts.name, {3: content, 4: _vector(builder, [unit]), 5: limits})


def _tensor(
    builder: Any, name: str, more: dict[int, int] | None = None, *, labels: bool = False
) -> int:
    fields = {0: builder.CreateString(name), **(more or {})}
    if labels:
        file = builder.CreateString(LABELS_FILE)
        builder.StartObject(5)
        builder.PrependUOffsetTRelativeSlot(0, file, 0)
        builder.PrependInt8Slot(2, _AXIS_LABELS, 0)
        fields[6] = _vector(builder, [builder.EndObject()])
    return _table(builder, fields)


def _table(builder: Any, offsets: dict[int, int], kinds: dict[int, int] | None = None) -> int:
    """Write a table of offsets by slot, and of kinds of unions by slot."""
    builder.StartObject(max(offsets) + 1)
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    for slot, kind in (kinds or {}).items():
        builder.PrependUint8Slot(slot, kind, 0)
    end: int = builder.EndObject()
    return end


def _vector(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    end: int = builder.EndVector()
    return end


def _floats(builder: Any, values: Sequence[float]) -> int:
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependFloat32(value)
    end: int = builder.EndVector()
    return end
