"""Held-out predictions of training, kept beside an export for the check.

One JSON object per line. An example is an image file or a row; the file records where the raw input
is, not a copy. This module does not use TensorFlow: both the training job and the control side of
the check read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from timonel.errors import CorruptError
from timonel.models.schema import Stored
from timonel.storage import write_text

MAX_EXAMPLES = 256
"""Limit on held-out examples: enough to detect an error of a few per cent, within a second."""


class ReferenceExample(Stored):
    """A held-out example, and the training pipeline's prediction for it."""

    key: str = Field(description="The record's key: the file's path relative to its source.")
    source: str | Mapping[str, Any] | None = Field(
        default=None, description="The raw file's absolute path, or the raw row by column."
    )
    digest: str | None = Field(default=None, description="The raw file's digest, if known.")
    scores: tuple[float, ...] = Field(description="Probabilities by class, or the one value.")
    label: float | None = Field(default=None, description="The true label's index, or value.")


def write_reference(path: Path, examples: Iterable[ReferenceExample]) -> None:
    """Write ``examples`` to ``path`` atomically."""
    lines = (json.dumps(example.model_dump(mode="json", exclude_none=True)) for example in examples)
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_reference(path: Path) -> list[ReferenceExample]:
    """Read the examples at ``path``.

    Raises:
        CorruptError: The file is missing or a line cannot be read.
    """
    try:
        lines = path.read_text().splitlines()
        return [ReferenceExample.model_validate_json(line) for line in lines]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise CorruptError(
            f"expected held-out predictions in {path}, got {first}",
            hint="train again, or export without the check (--no-check)",
        ) from error
