"""The options that apply to each kind of source; others are refused."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.data.sources.base import Scan, Source
from timonel.data.sources.formats import table_format
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import SpecError

_FOLDERS, _LISTS, _RECORDS = "folders of images", "lists of images", "TFRecords of images"
_TABLES, _IMAGES, _CSV, _JSON = "tables", "images", "CSV files", "JSON lines"

_KINDS = {"images": _FOLDERS, "image-list": _LISTS, "tfrecord-images": _RECORDS, "table": _TABLES}
"""Our sources; those of other packages may use any option."""

_APPLICABLE: Mapping[str, tuple[str, ...]] = {
    "label": (_TABLES, _LISTS, _RECORDS),
    "columns": (_TABLES, _LISTS, _RECORDS),
    "group_by": (_TABLES, _LISTS),
    "vocabularies": (_TABLES,),
    "max_vocabulary": (_TABLES,),
    "folders": (_FOLDERS,),
    "image_size": (_IMAGES,),
    "image_format": (_IMAGES,),
    "quality": (_IMAGES,),
    "check": (_IMAGES,),
    "allow_http": (_LISTS, _TABLES),
    "allow_private": (_LISTS, _TABLES),
    "delimiter": (_CSV,),
    "column_names": (_CSV,),
    "encoding": (_CSV, _JSON),
}


def check_applicable(source: Source, scan: Scan) -> None:
    """Check that the source uses all options that were given."""
    if source.plugin not in _KINDS:
        return
    options = source.options
    kinds = _kinds_of(source, scan)
    for name in options.model_dump(exclude_defaults=True):
        applicable = _APPLICABLE.get(name)
        if applicable is not None and kinds.isdisjoint(applicable):
            raise SpecError(
                f"{_option(name)} does not apply to {source.location}",
                hint=f"leave it out: it is for {' and '.join(applicable)}",
            )
    if options.task not in {None, scan.task}:
        raise SpecError(
            f"--task {options.task} does not apply to {source.location}",
            hint=f"leave it out: its labels are for {scan.task}",
        )


def _option(name: str) -> str:
    """Return the option of the command line that sets a field."""
    names = {"image_format": "--image-format", "vocabularies": "a vocabulary in the schema"}
    return names.get(name, f"--{name.replace('_', '-')}")


def _kinds_of(source: Source, scan: Scan) -> set[str]:
    kinds = {_KINDS[source.plugin]}
    if source.plugin != "table" or any(column.role == "image" for column in scan.columns):
        kinds.add(_IMAGES)
    if kinds & {_TABLES, _LISTS} and not isinstance(source.location, MemoryTable):
        first = source.location.first_file()
        found = None if first is None else table_format(first.name)
        kinds |= {_CSV} if found == "csv" else {_JSON} if found == "jsonl" else set()
    return kinds
