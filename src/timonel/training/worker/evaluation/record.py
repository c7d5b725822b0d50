"""Records of an evaluator: a document per ``fit`` call, read by trainers.

<job folder>/evaluations/fit-000.json    evaluated checkpoints and their metrics
<job folder>/evaluations/trained         the trainers have finished the script

An evaluator resumes from the document after a restart, and trainers learn from it which checkpoints
to keep. Writes are atomic.
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
    """An evaluated checkpoint."""

    checkpoint: str = Field(description="The name of its folder.")
    epoch: int = Field(description="Its epoch within its fit call, counting from 0.")
    step: int = Field(description="Optimizer steps of the job that it has behind it.")
    is_epochs_end: bool = Field(description="Whether the epoch was over.")
    values: Mapping[str, float | str] = Field(description="The metrics; NaN is a text.")
    seconds: float = Field(description="How long it took.")

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by Keras' names: ``val_loss``, ..."""
        decoded = {name: decode_number(value) for name, value in self.values.items()}
        return {name: value for name, value in decoded.items() if value is not None}


class Record(_Stored):
    """Evaluations of one ``fit`` call. Immutable."""

    evaluating: str | None = Field(default=None, description="The checkpoint under evaluation.")
    best: str | None = Field(default=None, description="The best checkpoint by the metric asked.")
    skipped: int = Field(default=0, description="Checkpoints that were passed over for newer ones.")
    done: tuple[Evaluated, ...] = Field(default=(), description="What was evaluated, in order.")

    @property
    def held(self) -> frozenset[str]:
        """Checkpoints that must be kept."""
        return frozenset(name for name in (self.evaluating, self.best) if name is not None)

    def has(self, checkpoint: str) -> bool:
        """Whether a checkpoint was evaluated."""
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
    """Return the record of an evaluated checkpoint."""
    return Evaluated(
        checkpoint=checkpoint,
        epoch=epoch,
        step=step,
        is_epochs_end=is_epochs_end,
        values={name: encode_number(value) for name, value in metrics.items()},
        seconds=round(seconds, 3),
    )


class Records:
    """Evaluation records of a job.

    Args:
        job_dir: Job folder.
    """

    def __init__(self, job_dir: Path) -> None:
        self._folder = job_dir / FOLDER

    def read(self, fit: int) -> Record:
        """Return the record of a ``fit`` call; empty if there is none.

        Raises:
            CorruptError: The document is invalid.
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
        """Replace the record of a ``fit`` call."""
        body: dict[str, Any] = {"fit": fit, **record.model_dump(mode="json")}
        write_document(self._path(fit), KIND, body)

    def fits(self) -> list[int]:
        """Return the numbers of the recorded ``fit`` calls."""
        found = self._folder.glob("fit-*.json")
        return sorted(int(path.stem.removeprefix("fit-")) for path in found)

    def mark_trained(self) -> None:
        """Record that the trainers have finished the script.

        No more checkpoints will come.
        """
        self._folder.mkdir(exist_ok=True)
        (self._folder / _TRAINED).touch()

    def begin_training(self) -> None:
        """Record that trainers start the script, possibly again."""
        (self._folder / _TRAINED).unlink(missing_ok=True)

    @property
    def is_trained(self) -> bool:
        """Whether the trainers have finished the script."""
        return (self._folder / _TRAINED).exists()

    def _path(self, fit: int) -> Path:
        return self._folder / f"fit-{fit:03d}.json"
