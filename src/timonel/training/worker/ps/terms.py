"""What is decided before the first step: how updates are made, and what cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timonel.errors import TimonelError
from timonel.training.settings import Settings
from timonel.training.worker.ps.ledger import Policy


def policy_of(settings: Settings, workers: int, epoch: int) -> Policy:
    """Return how updates are made in an epoch, counting from 0, with so many workers."""
    asked = settings.parameter_servers
    if epoch < asked.warmup_epochs:
        return Policy(attempts=1)
    if asked.backup_workers is not None:
        needed = max(1, workers - asked.backup_workers)
        return Policy(needed=needed, synchronous=True)
    return Policy(max_staleness=asked.max_staleness)


def describe(settings: Settings, workers: int) -> str:
    """Return in one line what a batch is here."""
    asked = settings.parameter_servers
    if asked.backup_workers is None:
        bound = "any age" if asked.max_staleness is None else f"{asked.max_staleness} updates old"
        return (
            f"asynchronous: each of {workers} workers takes a whole batch at a time, and each "
            f"batch is an update; gradients may be {bound}"
        )
    needed = max(1, workers - asked.backup_workers)
    return (
        f"synchronous: the batch size is global, divided among {needed} of {workers} workers; the "
        "fastest count"
    )


def check_model(keras: Any, model: Any, settings: Settings) -> None:
    """Check that workers can do what a model's ``fit`` is to do.

    Raises:
        TimonelError: They cannot; the message names what it is.
    """
    if model.run_eagerly:
        raise TimonelError(
            "expected run_eagerly=False with parameter servers, got True",
            hint="workers run what was traced: leave it out of compile()",
        )
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    for layer in layers:
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise TimonelError(
                f"expected layers that begin each batch anew, got the stateful {layer.name}",
                hint="batches go to several workers at once: use stateful=False",
            )
    synchronous = settings.parameter_servers.backup_workers is not None
    if synchronous and any(_sums(loss) for loss in _losses(model)):
        raise TimonelError(
            "expected a loss that is a mean over the batch, got one with reduction='sum'",
            hint="each batch is divided among workers, and their gradients are averaged: use "
            "reduction='sum_over_batch_size'",
        )


def _losses(model: Any) -> list[Any]:
    given = getattr(model, "loss", None)
    if isinstance(given, Mapping):
        return list(given.values())
    return list(given) if isinstance(given, list | tuple) else [given]


def _sums(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == "sum"
