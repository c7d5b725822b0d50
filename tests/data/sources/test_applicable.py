"""Options that a source does not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import MakeCsv, MakeImages
from tests.data.sources.test_tables import write_records
from tests.data.sources.test_tfrecords import records
from timonel.data import convert, schema_of
from timonel.data.sources import SourceOptions
from timonel.data.sources.applicable import _APPLICABLE
from timonel.errors import SpecError
from timonel.storage import Workspace

TEXT = ({"delimiter": ";"}, {"encoding": "utf-8"}, {"column_names": ["a", "b"]})
IMAGES = ({"image_size": (8, 8)}, {"image_format": "png"}, {"quality": 90}, {"check": "decode"})
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("folder", each) for each in ({"label": "y"}, {"columns": {"a": "text"}}, {"group_by": "a"})),
    *(("folder", each) for each in ({"task": "regression"}, *TEXT)),
    *(("csv", each) for each in ({"folders": "labels"}, *IMAGES)),
    *(("parquet", each) for each in TEXT),
    *(("frame", each) for each in TEXT),
    *(("records", each) for each in ({"group_by": "source"}, *TEXT)),
]


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_options_that_do_not_apply_are_refused(
    kind: str,
    option: dict[str, Any],
    make_images: MakeImages,
    make_csv: MakeCsv,
    tmp_path: Path,
    workspace: Workspace,
) -> None:
    options: dict[str, Any] = {"workspace": workspace}
    source: Any = make_images() if kind in {"folder", "records"} else make_csv()
    if kind in {"csv", "parquet", "frame"}:
        options["label"] = "good"
    if kind in {"parquet", "frame"}:
        table = pacsv.read_csv(source)
        source = table if kind == "frame" else tmp_path / "rows.parquet"
    if kind == "parquet":
        pq.write_table(table, source)
    if kind == "records":
        source = write_records(tmp_path / "a.tfrecord", records(source))
    (name,) = option
    name = name.replace("_", "-")
    with pytest.raises(SpecError, match=f"--{name}.* does not apply to .*: leave it out: "):
        convert(source, tmp_path / "set", **options, **option)
    assert not (tmp_path / "set").exists()


def test_types_of_features_beside_images(make_images: MakeImages, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", records(make_images()))
    with pytest.raises(SpecError, match=r"feature 'source' of .* cannot be text"):
        schema_of(path, columns={"source": "text"})
    assert schema_of(path, columns={"source": "drop"}).labels == ("0", "1")


def test_each_option_has_its_sources() -> None:
    general = {"task", "labels", "has_all_columns"}
    assert set(_APPLICABLE) == set(SourceOptions.model_fields) - general
