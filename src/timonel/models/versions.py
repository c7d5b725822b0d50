"""Model versions, and how to find them on disk like TensorFlow Serving."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from timonel.errors import NotFoundError, SpecError, TimonelError
from timonel.models.inspection import (
    PYTHON_MODEL_FILE,
    TFLITE_FILE,
    is_flatbuffer,
    is_python_model,
    is_saved_model,
    signatures_of,
)
from timonel.models.schema import (
    VERSION_FILE,
    CheckResult,
    HolderComparison,
    StoredSignature,
    VersionDocument,
)
from timonel.storage.aliases import LATEST, Aliases, version_named

_logger = logging.getLogger(__name__)

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION_NUMBER = re.compile(r"[0-9]{1,19}")
NO_VERSION = "has no version such as 1/saved_model.pb"
_MAX_NUMBER = 2**63 - 1


class ModelVersion(BaseModel):
    """A model version, published by timonel or by other tools. Immutable."""

    model_config = ConfigDict(frozen=True, ignored_types=(cached_property,))

    name: str = Field(description="Name of the model.")
    number: int = Field(description="Version number.")
    path: Path = Field(description="Folder of the version.")
    document: VersionDocument | None = Field(
        default=None, description="Its origin; null if timonel did not publish it."
    )
    aliases: tuple[str, ...] = Field(default=(), description="Its aliases, such as champion.")

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def __repr__(self) -> str:
        return f"ModelVersion({str(self)!r}, {self.uri!r})"

    def __fspath__(self) -> str:
        """Return its folder: a version can be given where the path of one can."""
        return self.uri

    @property
    def uri(self) -> str:
        """The folder of the version, as a string."""
        return str(self.path)

    @property
    def check(self) -> CheckResult | None:
        """Result of the check before publishing."""
        return self.document.check if self.document else None

    @property
    def comparison(self) -> HolderComparison | None:
        """Comparison with the version that had an alias before."""
        return self.document.comparison if self.document else None

    @property
    def run_id(self) -> str | None:
        """ID of the training run."""
        run_id = self.document.provenance.get("run_id") if self.document else None
        return None if run_id is None else str(run_id)

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """Class labels, in the order of the scores."""
        return self.document.export.labels if self.document else None

    @cached_property
    def is_python(self) -> bool:
        """Whether the version is a Python class rather than a SavedModel."""
        return is_python_model(self.path)

    @cached_property
    def signatures(self) -> Mapping[str, StoredSignature]:
        """Signatures of the SavedModel; empty for a Python or TensorFlow Lite model.

        Raises:
            ModelError: The SavedModel is broken.
        """
        return {} if self.is_python or is_flatbuffer(self.path) else signatures_of(self.path)

    def describe(self) -> dict[str, Any]:
        """Return all known facts about the version, as JSON.

        Raises:
            ModelError: The SavedModel is broken.
        """
        signatures = {name: sig.model_dump(mode="json") for name, sig in self.signatures.items()}
        known = self.document.model_dump(mode="json") if self.document else {}
        return {
            **known,
            "name": self.name,
            "version": self.number,
            "aliases": list(self.aliases),
            "path": str(self.path),
            "signatures": signatures,
        }


def check_name(name: str) -> None:
    """Check that ``name`` is a valid model name: fit for paths and URLs, and no version number."""
    if not MODEL_NAME.fullmatch(name) or VERSION_NUMBER.fullmatch(name):
        raise SpecError(
            f"invalid model name {name!r}",
            hint="use letters, digits, '.', '_' and '-', starting with a letter or digit; not only "
            "digits, which would be a version number",
        )


def unknown_model(name: str, known: Sequence[str], folder: Path) -> NotFoundError:
    """Return the error for a model that a workspace does not have.

    Args:
        folder: Where the user may have meant a folder of versions; it may not exist.
    """
    problem = f"no model {name!r} in this workspace"
    if folder.is_dir():
        problem += f", and the folder {folder} {NO_VERSION}"
    hint = f"the models are: {', '.join(known)}" if known else publish_hint(name)
    return NotFoundError(problem, hint=hint)


def publish_hint(name: str) -> str:
    """Return how to publish a version."""
    return (
        f"publish one with 'timonel export --name {name}', or a model made elsewhere with "
        f"'timonel models add {name} PATH'"
    )


def holds_models(path: Path) -> bool:
    """Return whether ``path`` is the folder of a model or of numbered versions.

    Folders of raw files may have numeric names too, such as the labels of digits.
    """
    return any(map(_is_model, (path, *(version for _, version in numbered(path)))))


def _is_model(folder: Path) -> bool:
    names = ("saved_model.pb", "saved_model.pbtxt", TFLITE_FILE, PYTHON_MODEL_FILE, VERSION_FILE)
    return any((folder / name).is_file() for name in names)


def open_version(path: Path, alias: str | None = None) -> ModelVersion | None:
    """Return the version at ``path``, else the one below with an alias, else None.

    Without an alias, it is the highest-numbered one.
    """
    absolute = path.absolute()
    if not holds_models(absolute):
        return None
    alias = None if alias == LATEST else alias
    is_one = is_saved_model(absolute) or is_python_model(absolute) or is_flatbuffer(absolute)
    if alias is None and is_one:
        if VERSION_NUMBER.fullmatch(absolute.name):
            return version_at(absolute.parent.name, int(absolute.name), absolute)
        return version_at(absolute.name, 1, absolute)
    found = dict(numbered(absolute))
    aliases = Aliases(absolute).read()
    number = (
        max(found, default=0) if alias is None else version_named(alias, aliases, absolute.name)
    )
    return version_at(absolute.name, number, found[number], aliases) if number in found else None


def numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the version folders in ``folder`` that TensorFlow Serving would load."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if VERSION_NUMBER.fullmatch(path.name) and int(path.name) <= _MAX_NUMBER and path.is_dir():
            yield int(path.name), path


def version_at(
    name: str, number: int, path: Path, aliases: Mapping[str, int] = MappingProxyType({})
) -> ModelVersion:
    """Return the version at ``path``, with those of a model's aliases that name it."""
    document = None
    try:
        document = VersionDocument.read(path / VERSION_FILE, "model-version")
    except NotFoundError:
        pass
    except TimonelError as error:
        # The SavedModel may still be fine, so the version stays listed and servable.
        _logger.warning("ignoring the document of %s: %s", path, error)
    own = tuple(sorted(alias for alias, version in aliases.items() if version == number))
    return ModelVersion(name=name, number=number, path=path, document=document, aliases=own)
