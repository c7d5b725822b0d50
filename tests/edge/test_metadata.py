"""Metadata of flatbuffers, as zip tools, flatbuffer readers and MediaPipe read it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import encode, number_types, table

from timonel.edge import Conversion
from timonel.edge.report import labels_text

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def model(litert: Conversion) -> Path:
    return litert.folder / "model.tflite"


def test_labels_are_in_the_archive_behind_the_model(model: Path) -> None:
    with zipfile.ZipFile(model) as archive:
        assert archive.namelist() == ["labels.txt"]
        assert archive.read("labels.txt") == b"bright\ndark\n"


def test_each_label_is_one_line() -> None:
    assert labels_text(["a\nb", "c\r\n", "d e"]) == "a b\nc\nd e\n"


def test_the_tables_are_where_readers_look_for_them(model: Path) -> None:
    content = model.read_bytes()
    read = schema.ModelT.InitFromPackedBuf(bytearray(content), 0)
    (entry,) = (each for each in read.metadata if each.name == b"TFLITE_METADATA")
    found = np.asarray(read.buffers[entry.buffer].data).tobytes()
    assert found[4:8] == b"M001"
    root = table.Table(found, encode.Get(number_types.UOffsetTFlags.packer_type, found, 0))
    assert root.String(root.Offset(4) + root.Pos) == b"shapes/1"
    assert b"scores" in found
    assert b"labels.txt" in found


def test_mediapipe_classifies_with_it(model: Path) -> None:
    mediapipe = pytest.importorskip("mediapipe", reason="mediapipe is not installed")
    from mediapipe.tasks.python import BaseOptions, vision

    options = vision.ImageClassifierOptions(base_options=BaseOptions(model_asset_path=str(model)))
    with vision.ImageClassifier.create_from_options(options) as classifier:
        pixels = np.full((12, 12, 3), 240, np.uint8)
        image = mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=pixels)
        best = classifier.classify(image).classifications[0].categories[0]
    assert best.category_name == "bright"
