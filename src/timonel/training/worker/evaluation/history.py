"""Add an evaluator's metrics to the ``History`` that ``fit`` returns."""

from __future__ import annotations

from typing import Any

from timonel.training.worker.evaluation.record import Record


def add_to_history(history: Any, record: Record) -> None:
    """Add evaluations at epoch ends, unless the trainers validated themselves.

    Skipped epochs are missing, as with Keras' ``validation_freq``.
    """
    own = set(history.history)
    for done in record.done:
        if done.is_epochs_end:
            for name, value in done.metrics.items():
                if name not in own:
                    history.history.setdefault(name, []).append(value)
