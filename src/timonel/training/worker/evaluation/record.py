"""What an evaluator has done, as a document for each ``fit`` call that trainers can read.

<job folder>/evaluations/fit-000.json    what was evaluated, and what the values were
<job folder>/evaluations/trained         the trainers are through the script

The document is what an evaluator goes on with after a restart, and how trainers learn which
checkpoints must not be removed. Readers see it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from timonel.errors import CorruptError, NotFoundError
from timonel.storage import read_document, write_document
from timonel.tracking.events import decode_number, encode_number

FOLDER = "evaluations"
KIND = "evaluations"
_TRAINED = "trained"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Evaluated(_Stored):
    """One checkpoint that was evaluated."""

    checkpoint: str = Field(description="The name of its folder.")
    epoch: int = Field(description="Its epoch within its fit call, counting from 0.")
    step: int = Field(description="Optimizer steps of the job that it has behind it.")
    is_epochs_end: bool = Field(description="Whether the epoch was over.")
    values: Mapping[str, float | str] = Field(description="The metrics; NaN is a text.")
    seconds: float = Field(description="How long it took.")

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by Keras' names: ``val_loss``, ..."""
        decoded = {name: decode_number(value) for name, value in self.values.items()}
        return {name: value for name, value in decoded.items() if value is not None}


class Record(_Stored):
    """What was done for one ``fit`` call. Immutable."""

    evaluating: str | None = Field(default=None, description="The checkpoint under evaluation.")
    best: str | None = Field(default=None, description="The best checkpoint by the metric asked.")
    skipped: int = Field(default=0, description="Checkpoints that were passed over for newer ones.")
    done: tuple[Evaluated, ...] = Field(default=(), description="What was evaluated, in order.")

    @property
    def held(self) -> frozenset[str]:
        """The checkpoints that must not be removed."""
        return frozenset(name for name in (self.evaluating, self.best) if name is not None)

    def has(self, checkpoint: str) -> bool:
        """Tell whether a checkpoint was evaluated."""
        return any(found.checkpoint == checkpoint for found in self.done)


def evaluated(
    checkpoint: str,
    *,
    epoch: int,
    step: int,
    is_epochs_end: bool,
    metrics: Mapping[str, float],
    seconds: float,
) -> Evaluated:
    """Return the entry of a checkpoint."""
    return Evaluated(
        checkpoint=checkpoint,
        epoch=epoch,
        step=step,
        is_epochs_end=is_epochs_end,
        values={name: encode_number(value) for name, value in metrics.items()},
        seconds=round(seconds, 3),
    )


class Records:
    """The documents of one job.

    Args:
        job_dir: The job's folder.
    """

    def __init__(self, job_dir: Path) -> None:
        self._folder = job_dir / FOLDER

    def read(self, fit: int) -> Record:
        """Return what is recorded of a ``fit`` call; an empty record if nothing is.

        Raises:
            CorruptError: It is something else.
            FormatError: A newer release wrote it.
        """
        path = self._path(fit)
        try:
            return Record.model_validate(read_document(path, KIND))
        except NotFoundError:
            return Record()
        except ValidationError as error:
            raise CorruptError(f"expected evaluations in {path}, got something else") from error

    def write(self, fit: int, record: Record) -> None:
        """Replace what is recorded of a ``fit`` call."""
        body: dict[str, Any] = {"fit": fit, **record.model_dump(mode="json")}
        write_document(self._path(fit), KIND, body)

    def fits(self) -> list[int]:
        """Return the numbers of the ``fit`` calls that something is recorded of."""
        found = self._folder.glob("fit-*.json")
        return sorted(int(path.stem.removeprefix("fit-")) for path in found)

    def mark_trained(self) -> None:
        """Note that the trainers are through the script: no other checkpoint will come."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / _TRAINED).touch()

    def begin_training(self) -> None:
        """Note that trainers begin the script, maybe once more."""
        (self._folder / _TRAINED).unlink(missing_ok=True)

    @property
    def is_trained(self) -> bool:
        """Whether the trainers are through the script."""
        return (self._folder / _TRAINED).exists()

    def _path(self, fit: int) -> Path:
        return self._folder / f"fit-{fit:03d}.json"
