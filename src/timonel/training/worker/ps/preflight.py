"""Decide the update policy and reject unsupported options before the first step."""

from __future__ import annotations

from typing import Any

from timonel.errors import TimonelError
from timonel.training.settings import ANY_STALENESS, Settings
from timonel.training.worker.ps.ledger import Policy, Tally


def policy_of(settings: Settings, workers: int, epoch: int) -> Policy:
    """Return the update policy for an epoch, counting from 0."""
    asked = settings.parameter_servers
    if epoch < asked.warmup_epochs:
        return Policy(attempts=1)
    if asked.backup_workers is not None:
        needed = max(1, workers - asked.backup_workers)
        return Policy(needed=needed, synchronous=True)
    return Policy(max_staleness=_staleness_bound(settings, workers))


def parts_of_batches(settings: Settings, workers: int) -> int:
    """Return the number of parts of a batch, after the warm-up."""
    return policy_of(settings, workers, settings.parameter_servers.warmup_epochs).needed


def _staleness_bound(settings: Settings, workers: int) -> int | None:
    """Return the maximum staleness that counts, by default ``workers - 1``."""
    # This is the staleness that arises if each worker has one gradient in flight; older gradients
    # waited for the chief. Without a bound, two workers on one machine came to 2.7 on average: SGD
    # with momentum diverged where one process did not, and Adam took twice as many epochs.
    asked = settings.parameter_servers.max_staleness
    if asked is None:
        return workers - 1
    return None if asked >= ANY_STALENESS else asked


def describe(settings: Settings, workers: int) -> str:
    """Describe in one line how batches are divided and applied."""
    asked = settings.parameter_servers
    if asked.backup_workers is None:
        found = _staleness_bound(settings, workers)
        bound = (
            "of any age count in full"
            if found is None
            else f"up to {found} updates old count 1 / age, older ones are computed again"
        )
        return (
            f"asynchronous: each of {workers} workers takes a whole batch at a time, and each "
            f"batch is an update; gradients {bound} (--max-staleness). Results differ from one "
            "process; --backup-workers 0 trains as one process does"
        )
    needed = max(1, workers - asked.backup_workers)
    return (
        f"synchronous: the batch size is global, divided among {needed} of {workers} workers; the "
        "fastest count"
    )


def summarize(settings: Settings, tally: Tally) -> str | None:
    """Summarize gradient staleness in one line; None for synchronous training."""
    if settings.parameter_servers.backup_workers is not None or not tally.updates:
        return None
    weight = "in full" if tally.weight_mean > 0.995 else f"{tally.weight_mean:.2f} on average"
    return (
        f"asynchronous: gradients were {tally.staleness_mean:.1f} updates old on average, "
        f"{tally.staleness_max} at most, and counted {weight}; {tally.dropped:,} of "
        f"{tally.updates + tally.dropped:,} were too old and computed again (no batch is skipped). "
        "--backup-workers 0 trains as one process does; if the loss diverges, use a lower learning "
        "rate"
    )


def check_precision(keras: Any, settings: Settings) -> None:
    """Check that this Keras supports the precision with parameter servers."""
    if keras.__name__ == "tf_keras" and settings.numerics.precision == "float16":
        raise TimonelError(
            "--precision float16 scales the loss, which tf-keras does not support with parameter "
            "servers",
            hint="use --precision bfloat16, or Keras 3",
        )


def check_model(keras: Any, model: Any, *, is_compiled: bool = False) -> None:
    """Check that workers can train a compiled model; ``is_compiled``: the script asked for XLA."""
    if model.run_eagerly:
        raise TimonelError(
            "parameter servers do not support run_eagerly=True",
            hint="workers run traced steps: leave it out of compile()",
        )
    if is_compiled:
        raise TimonelError(
            "parameter servers do not support jit_compile=True",
            hint="XLA cannot compile steps whose variables are on other machines: leave it out of "
            "compile()",
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not hasattr(optimizer, "build"):
        name = type(optimizer).__name__
        raise TimonelError(
            f"parameter servers do not support the legacy optimizer {name}",
            hint=f"use tf.keras.optimizers.{name}, or train with --workers without --ps",
        )
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise TimonelError(
                f"parameter servers do not support the stateful layer {layer.name}",
                hint="batches go to several workers at once: use stateful=False",
            )
