"""Schemas that users give to a conversion: columns, labels and vocabularies, as YAML or JSON.

label: survived
task: classification
labels: [died, survived]
columns:
  age: number
  deck: {type: category, vocabulary: [A, B, C]}
  photo: image
  ticket: drop
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import yaml  # type: ignore[import-untyped] # no stubs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from timonel.data.convert_options import SchemaOptions
from timonel.data.manifest import Manifest
from timonel.data.schema import (
    ColumnRole,
    ColumnType,
    ImageSchema,
    Task,
    WordColumn,
    labels_of,
    parse_column_type,
    sort_labels,
    type_word,
)
from timonel.data.sources import SourceOptions, choose_source
from timonel.data.sources.applicable import check_applicable
from timonel.data.sources.frames import Frame, locate
from timonel.data.sources.recordfiles import dataset_manifest
from timonel.errors import InputError, NotFoundError, SpecError
from timonel.options import documented, with_defaults
from timonel.storage.location import Location
from timonel.storage.yaml_text import PlainLoader, yaml_problem

GivenColumns = Mapping[str, str]


class _Given(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GivenColumn(_Given):
    """Column of a given schema; its type alone is enough."""

    type: ColumnType
    vocabulary: tuple[str, ...] = Field(
        default=(), description="Words of a category or text, in the order of their numbers."
    )
    note: str = Field(default="", description="Reason for the inferred type; not read.")

    @model_validator(mode="before")
    @classmethod
    def _type_alone(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("type", mode="before")
    @classmethod
    def _alias(cls, value: Any) -> Any:
        try:
            return parse_column_type(value) if isinstance(value, str) else value
        except SpecError as error:
            raise ValueError(f"{error.message}: {error.hint}") from error

    @model_validator(mode="after")
    def _check(self) -> GivenColumn:
        if self.vocabulary and self.type not in {"categorical", "text"}:
            raise ValueError("only categories and texts have a vocabulary")
        _check_unique(self.vocabulary)
        return self

    @property
    def in_yaml(self) -> str | dict[str, Any]:
        """The type, with the vocabulary if one is given."""
        if not self.vocabulary:
            return type_word(self.type)
        return {"type": type_word(self.type), "vocabulary": list(self.vocabulary)}


class GivenSchema(_Given):
    """Schema of a source, from which a conversion infers nothing.

    Labels and vocabularies that are not given come from the data.
    """

    label: str | None = Field(default=None, description="Label column of a table.")
    task: Task | None = None
    labels: tuple[str, ...] = Field(
        default=(), description="Class names, in the order of their numbers; others are errors."
    )
    group_by: str | None = Field(
        default=None, description="Column whose equal values keep rows in one split."
    )
    columns: dict[str, GivenColumn] = Field(
        default_factory=dict, description="All columns of a table but label and group."
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _whole_numbers(cls, value: Any) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return value
        return [str(each) if type(each) is int else each for each in value]

    @model_validator(mode="after")
    def _check(self) -> GivenSchema:
        if self.labels and self.task == "regression":
            raise ValueError("a regression has no labels")
        _check_unique(self.labels)
        return self

    def options(self) -> dict[str, Any]:
        """Return the fields of `SourceOptions` that this schema sets."""
        return {
            "label": self.label,
            "task": self.task,
            "group_by": self.group_by,
            "labels": self.labels,
            "columns": {name: column.type for name, column in self.columns.items()},
            "vocabularies": {
                name: column.vocabulary
                for name, column in self.columns.items()
                if column.vocabulary
            },
            "has_all_columns": bool(self.columns),
        }

    def to_yaml(self) -> str:
        """Return the schema as YAML with notes as comments; most columns are one line."""
        body = self.model_dump(mode="json", exclude_defaults=True, exclude={"columns"})
        lines = _yaml_lines(body) if body or not self.columns else []
        blocks = [
            (_yaml_lines({name: column.in_yaml}), column.note)
            for name, column in self.columns.items()
        ]
        if blocks:
            lines.append("columns:")
        width = max((len(block[0]) for block, note in blocks if note), default=0)
        for (first, *rest), note in blocks:
            # The first line of several may end inside quotes.
            lines += [f"  # {note}"] if note and rest else []
            lines.append(f"  {first:{width}}  # {note}" if note and not rest else f"  {first}")
            lines += [f"  {line}" for line in rest]
        return "\n".join(lines) + "\n"


def read_schema(given: str | os.PathLike[str] | Mapping[str, Any] | GivenSchema) -> GivenSchema:
    """Return a schema from a YAML or JSON file, a dataset, or a mapping."""
    if isinstance(given, GivenSchema):
        return given
    if isinstance(given, Mapping):
        return _parsed(given, "the schema")
    file = Location(given)
    if (manifest := dataset_manifest(file)) is not None:
        return _of_dataset(manifest)
    if file.is_local and file.path.exists() and not file.path.is_file():
        raise SpecError(f"{file} is not a regular file")  # a pipe would wait
    try:
        body = yaml.load(file.read().decode(), Loader=PlainLoader)  # noqa: S506 - as safe_load
    except RecursionError:
        raise SpecError(f"{file} is not a schema: nested too deeply") from None
    except (FileNotFoundError, NotFoundError) as error:
        raise NotFoundError(f"no schema or dataset at {file}", hint="check the path") from error
    except OSError as error:
        raise InputError(f"cannot read the schema {file}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} is neither YAML nor JSON{yaml_problem(error)}") from error
    return _parsed(body, str(file))


@documented(SchemaOptions)
def schema_of(
    source: str | os.PathLike[str] | Frame, **options: Unpack[SchemaOptions]
) -> GivenSchema:
    """Return the schema that `convert` would infer for a source, or the one of a dataset.

    That of a dataset includes vocabularies, which come from its training split.

    Args:
        source: What `convert` takes, or a dataset.
        **options: See `SchemaOptions`.

    Raises:
        InputError: The source cannot be read, or an option is wrong.
        DataError: The raw data cannot be used.
    """
    location = locate(source)
    if (manifest := dataset_manifest(location)) is not None:
        return _of_dataset(manifest)
    given = with_defaults(SchemaOptions, options)
    of_the_source = SourceOptions(**source_options(given))
    chosen = choose_source(location, of_the_source, given["kind"])(location, of_the_source)
    scan = chosen.scan()
    check_applicable(chosen, scan)
    found = {str(entry.label) for entry in scan.entries} if scan.task != "regression" else set()
    if scan.task == "multilabel":
        found = {each for labels in found for each in labels_of(labels)}
    return _of_columns(scan.columns, scan.task, sort_labels(found), {})


def source_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `SourceOptions` among options, with the types of columns parsed."""
    fields = {name: given[name] for name in SourceOptions.model_fields if name in given}
    columns = {name: parse_column_type(word) for name, word in (given["columns"] or {}).items()}
    return {**fields, "columns": columns, "column_names": tuple(given["column_names"])}


def of_source(location: Location, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `SourceOptions`; a dataset as a source keeps its schema and labels.

    Fields that the user sets go before those of the dataset.
    """
    manifest = dataset_manifest(location)
    if manifest is None:
        return dict(given)
    schema = manifest.record_schema
    stored = () if isinstance(schema, ImageSchema) else schema.columns
    found = _of_dataset(manifest)
    kept = {column.name: found.columns[column.name] for column in stored}
    label = None if isinstance(schema, ImageSchema) else schema.label
    fields = found.model_copy(update={"columns": kept, "label": label, "group_by": None}).options()
    columns = {**fields["columns"], **given["columns"]}
    user = {name: value for name, value in given.items() if value}
    return {**fields, **user, "columns": columns, "has_all_columns": False}


def _of_dataset(manifest: Manifest) -> GivenSchema:
    schema = manifest.record_schema
    columns = () if isinstance(schema, ImageSchema) else schema.columns
    words = {each.name: each.vocabulary for each in columns if isinstance(each, WordColumn)}
    return _of_columns(manifest.columns, manifest.task, manifest.labels, words)


def _of_columns(
    roles: Sequence[ColumnRole],
    task: Task,
    labels: Sequence[str],
    words: Mapping[str, tuple[str, ...]],
) -> GivenSchema:
    named = {role.role: role.name for role in roles}
    return GivenSchema(
        label=named.get("label"),
        task=task,
        labels=tuple(labels),
        group_by=named.get("group"),
        columns={
            role.name: GivenColumn(
                type=role.role,
                vocabulary=words.get(role.name, ()),
                note="; ".join(filter(None, (role.values, role.note))),
            )
            for role in roles
            if role.role not in {"label", "group"}
        },
    )


def _yaml_lines(body: Mapping[str, Any]) -> list[str]:
    text: str = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.rstrip("\n").split("\n")


def _parsed(body: Any, name: str) -> GivenSchema:
    try:
        return GivenSchema.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        hint = 'write words such as "yes" in quotes' if first["type"] == "string_type" else None
        raise SpecError(f"{name}: {f'{where}: ' if where else ''}{reason}", hint=hint) from error


def _check_unique(words: Sequence[str]) -> None:
    repeated = [word for word, count in Counter(words).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]!r} is listed twice")
