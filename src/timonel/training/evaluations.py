"""Records of an evaluator: a document per ``fit`` call, read by trainers.

<job folder>/evaluations/fit-000.json    evaluated checkpoints and their metrics
<job folder>/evaluations/trained         the trainers have finished the script

An evaluator resumes from the document after a restart, and trainers learn from it which checkpoints
to keep. Writes are atomic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from timonel.errors import CorruptError, NotFoundError
from timonel.storage import read_document, write_document
from timonel.tracking.events import decode_number
from timonel.training.option_values import Best, EarlyStopping

_KIND = "evaluations"
_TRAINED = "trained"


class CheckpointEvaluation(BaseModel):
    """Results for one checkpoint. Immutable."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str  # name of its folder
    epoch: int  # within the fit call, from 0
    step: int  # optimizer steps of the job before the checkpoint
    is_epochs_end: bool
    values: Mapping[str, float | str]  # metrics; NaN is text
    seconds: float  # duration of the evaluation

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by Keras' names: ``val_loss``, ..."""
        decoded = {name: decode_number(value) for name, value in self.values.items()}
        return {name: value for name, value in decoded.items() if value is not None}


class FitEvaluations(BaseModel):
    """Evaluations of one ``fit`` call. Immutable."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    evaluating: str | None = None  # checkpoint
    best: str | None = None  # checkpoint by --keep-best
    skipped: int = 0  # checkpoints, for newer ones
    done: tuple[CheckpointEvaluation, ...] = ()  # results, in order

    @property
    def held(self) -> frozenset[str]:
        """Checkpoints that must be kept."""
        return frozenset(name for name in (self.evaluating, self.best) if name is not None)

    def has(self, checkpoint: str) -> bool:
        """Whether a checkpoint was evaluated."""
        return any(result.checkpoint == checkpoint for result in self.done)


class EvaluationRecords:
    """Evaluation records of a job."""

    def __init__(self, job_dir: Path) -> None:
        self._folder = job_dir / "evaluations"

    def read(self, fit: int) -> FitEvaluations:
        """Return the record of a ``fit`` call; empty if there is none."""
        path = self._path(fit)
        try:
            return FitEvaluations.model_validate(read_document(path, _KIND))
        except NotFoundError:
            return FitEvaluations()
        except ValidationError as error:
            raise CorruptError(f"{path} is not a valid record of evaluations") from error

    def write(self, fit: int, record: FitEvaluations) -> None:
        """Replace the record of a ``fit`` call."""
        write_document(self._path(fit), _KIND, {"fit": fit, **record.model_dump(mode="json")})

    def mark_trained(self) -> None:
        """Record that the trainers have finished the script and save no more checkpoints."""
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


def best_of(done: Sequence[CheckpointEvaluation], by: Best) -> CheckpointEvaluation | None:
    """Return the first of the best evaluations with a finite metric, if any."""
    best: CheckpointEvaluation | None = None
    for result in done:
        value = result.metrics.get(by.metric, math.nan)
        if math.isfinite(value) and (best is None or by.is_better(value, best.metrics[by.metric])):
            best = result
    return best


def should_stop(done: Sequence[CheckpointEvaluation], rule: EarlyStopping) -> bool:
    """Whether training should end, given the evaluations so far."""
    best = best_of(done, rule.by)
    since_best = len(done) if best is None else len(done) - 1 - done.index(best)
    return since_best >= rule.patience
