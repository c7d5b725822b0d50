from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data import Profile, convert, stats
from timonel.data.examples import decode_example, encode_example
from timonel.data.inspection.distributions import Numbers, Words
from timonel.data.schema import NumericColumn, TableSchema
from timonel.errors import SpecError
from timonel.storage import Workspace


def test_statistics_agree_with_the_manifest(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    rows = [f"{'' if i % 7 == 0 else i + 0.5},{'red' if i % 3 else ''},{i % 2}" for i in range(200)]
    source = make_csv("size,colour,good", *rows)
    dataset = convert(source, tmp_path / "data", label="good", workspace=workspace)
    found = stats(dataset)
    assert list(found) == ["train", "validation", "test"]
    for split, profile in found.items():
        assert profile.records == dataset.count(split)
        labels = dataset.manifest.label_counts[split]
        assert profile.summary()["columns"]["label"]["common"] == {
            k: n for k, n in labels.items() if n
        }
    schema = dataset.manifest.record_schema
    assert isinstance(schema, TableSchema)
    size, colour = (found["train"].distributions[name] for name in ("size", "colour"))
    expected, words = schema.columns
    assert isinstance(expected, NumericColumn)
    assert isinstance(size, Numbers)
    assert size.missing == expected.missing > 0
    assert size.moments.mean == pytest.approx(expected.mean, rel=1e-6)
    assert size.moments.std == pytest.approx(expected.std, rel=1e-6)
    assert colour.missing == words.missing > 0
    assert list(stats(dataset, split="test")) == ["test"]
    with pytest.raises(SpecError, match="expected one of the splits"):
        stats(dataset, split="tset")


def test_images_have_sizes_formats_and_modes(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    make_images(["a"], 10, size=(6, 12), ending="jpg")
    source = make_images(["b"], 10, size=(6, 3), mode="L")
    convert(source, tmp_path / "data", splits=(0.5, 0.25, 0.25), workspace=workspace)
    total: dict[str, int] = {}
    for profile in stats(tmp_path / "data").values():
        columns = profile.summary()["columns"]
        for part in ("format", "mode"):
            for word, count in columns[f"image {part}"]["common"].items():
                total[word] = total.get(word, 0) + count
        assert {columns["image height"][end] for end in ("minimum", "maximum")} == {6.0}
        assert columns["image aspect ratio"]["count"] == profile.records
    assert total == {"JPEG": 10, "RGB": 10, "PNG": 10, "L": 10}


def test_any_features_have_a_profile() -> None:
    file = io.BytesIO()
    Image.new("L", (7, 5)).save(file, "PNG")
    damaged = file.getvalue()[:20]
    profile = Profile(
        decode_example(encode_example(features))
        for features in (
            {"n": [1, 2, 3], "text": "BMW 320i touring", "raw": b"\x00\xff", "image": damaged},
            {"n": [4], "text": "", "raw": b"a" * 300, "image": file.getvalue(), "label": 9},
            {"n": [], "text": "x"},
        )
    )
    found = profile.distributions
    assert profile.records == 3
    n, text = found["n"], found["text"]
    assert isinstance(n, Numbers)
    assert isinstance(text, Words)
    assert (n.count, n.missing) == (4, 1)
    assert (text.count, text.missing) == (2, 1)
    assert isinstance(lengths := found["n count"], Numbers)
    assert lengths.cells()[0].tolist() == [0, 1, 3]
    assert found["raw bytes"].summary()["maximum"] == 300
    assert found["image format"].summary()["common"] == {"PNG": 1, "damaged": 1}
    assert found["image width"].summary()["missing"] == 1
    assert found["label"].missing == 2


def test_columns_with_the_names_of_others() -> None:
    png = io.BytesIO()
    Image.new("L", (7, 5)).save(png, "PNG")
    features = {
        "label": 1,
        "column/label": "x",
        "column/image": png.getvalue(),
        "column/image width": 0.5,
        "column/mixed": "word",
    }
    records = [encode_example(features), encode_example({**features, "column/mixed": 2})]
    found = Profile(map(decode_example, records), ["a", "b"])
    assert len(found.distributions) == 11
    assert sorted(found.origins.values()).count("column/image") == 6
    assert found.distributions["label"].summary()["common"] == {"b": 2}
    kinds = {
        found.distributions[name].summary()["type"]: name
        for name in found.distributions
        if "mixed" in name
    }
    assert set(kinds) == {"number", "words"}


def test_missing_dates_and_empty_texts_are_missing() -> None:
    records = [
        {"date": 0, "text": "", "none": ""},
        {"date": -(2**63), "text": "a" * 300, "none": ""},
        {"date": 86400, "text": "b", "none": ""},
    ]
    found = Profile(decode_example(encode_example(record)) for record in records).distributions
    assert found["date"].summary()["minimum"] == 0
    assert found["date"].missing == 1
    assert found["text"].missing == found["text bytes"].missing == 1
    assert (found["none"].count, found["none"].missing) == (0, 3)


def test_types_of_columns_choose_their_distributions() -> None:
    first = {"when": 86400, "note": "short", "boxes": [0.0, 0.25, 0.5, 1.0, 3.0]}
    second = {"when": 0, "note": "", "boxes": []}
    types = {"when": "date", "note": "text", "boxes": "boxes"}
    records = map(decode_example, map(encode_example, (first, second)))
    found = Profile(records, types=types).distributions
    when = found["when"]
    assert isinstance(when, Numbers)
    assert when.show(when.quantiles([1])[0]) == "1970-01-02"
    assert (found["note bytes"].count, found["note bytes"].missing) == (1, 1)
    shown = {name: part.summary() for name, part in found.items() if name.startswith("boxes ")}
    assert set(shown) == {"boxes count", "boxes height", "boxes width", "boxes class"}
    assert shown["boxes count"]["histogram"]["counts"] == [1, 1]
    assert (shown["boxes height"]["maximum"], shown["boxes width"]["maximum"]) == (0.5, 0.75)
    assert shown["boxes class"]["common"] == {"3": 1}
