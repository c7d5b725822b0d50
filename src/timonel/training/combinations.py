"""Rules for combining options with each other and with strategies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from timonel.errors import SpecError
from timonel.training.option_values import parse_best, parse_early_stopping, parse_steps
from timonel.training.settings import Settings
from timonel.training.train_options import Strategy

_OF_ONE_WORKER = frozenset({"one-device", "mirrored", "central-storage", "tpu"})
_REDUCING = frozenset({"mirrored", "multi-worker"})
"""Strategies whose replicas all-reduce their gradients."""
_FLAGS = {
    "mirrored": "--devices-per-worker",
    "multi-worker": "--workers",
    "parameter-server": "--ps",
}
"""Option that makes ``auto`` choose a strategy."""


def check_settings(settings: Settings) -> None:
    """Check that the options can be combined."""
    distribution = settings.distribution
    chosen = choose(
        distribution.strategy,
        workers=distribution.workers,
        devices=distribution.devices_per_worker,
        ps=settings.parameter_servers.ps,
    )
    for message, hint in contradictions(settings, chosen):
        raise SpecError(message, hint=hint)


def choose(
    requested: Strategy, *, workers: int, devices: int, ps: int = 0, tpu: bool = False
) -> Strategy:
    """Return the strategy for a job's size; ``none`` for one device."""
    # ``auto`` follows tensorflow-cloud's rule: a TPU if available, multi-worker for several
    # workers, mirrored for several devices, else none; and parameter servers if requested.
    if requested in _OF_ONE_WORKER and workers > 1:
        raise SpecError(
            f"the strategy '{requested}' runs in one worker, but --workers is {workers}",
            hint="use --strategy auto, or --devices-per-worker instead of --workers",
        )
    if requested != "auto":
        return requested
    if ps:
        return "parameter-server"
    if workers > 1:
        return "multi-worker"
    if tpu:
        return "tpu"
    return "mirrored" if devices > 1 else "none"


def contradictions(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    """Yield each contradiction as a message and a hint."""
    if settings.distribution.strategy == "none":
        yield from _left_alone(settings)
    yield from _of_roles(settings, chosen)
    if settings.distribution.launcher == "mpi":
        yield from _of_mpi(settings)
    yield from _of_communication(settings, chosen)
    yield from _of_numerics(settings, chosen)
    yield from _of_parameter_servers(settings, chosen)
    yield from _of_evaluation(settings)
    yield from _of_profiling(settings, chosen)


def _left_alone(settings: Settings) -> Iterator[tuple[str, str]]:
    usual = Settings()
    for group in ("numerics", "batches", "checkpoints", "devices", "profiling"):
        for name, value in getattr(settings, group).model_dump().items():
            if value != getattr(getattr(usual, group), name):
                yield _without(name, "the strategy 'none', which leaves all of it to the script")
    if settings.faults.stop_on_nan:
        yield _without("stop_on_nan", "the strategy 'none', which does not change fit")
    if settings.distribution.devices_per_worker > 1:
        yield _without("devices_per_worker", "the strategy 'none': the script sets up its devices")


def _of_roles(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    asked = settings.distribution
    if asked.chief == "worker":
        if chosen == "parameter-server":
            yield _without("chief", "parameter servers: their workers serve a chief")
        if asked.min_workers < asked.workers:
            yield _without("chief", "a range of workers: the chief can never leave")
    if asked.success_policy == "all-workers" and chosen == "parameter-server":
        yield _without("success_policy", "parameter servers: their workers serve until the end")


def _of_mpi(settings: Settings) -> Iterator[tuple[str, str]]:
    asked = settings.distribution
    if settings.uses_parameter_servers or settings.parameter_servers.ps:
        yield "--launcher mpi does not support parameter servers", "leave out --launcher"
    if settings.evaluation.evaluator:
        yield "--launcher mpi does not support an evaluator", "leave out --evaluator"
    if asked.chief == "worker":
        yield _without("chief", "--launcher mpi, where rank 0 is the chief")
    if asked.min_workers < asked.workers:
        yield (
            "--launcher mpi needs a fixed number of workers: its ranks start and end together",
            f"give --workers {asked.workers}",
        )


def _of_communication(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    asked = settings.distribution
    if asked.cross_device_ops is not None and chosen != "mirrored":
        yield (
            _only_with("--cross-device-ops", "the strategy 'mirrored'", chosen),
            "between workers use --collectives; for one worker give --devices-per-worker 2",
        )
    if asked.collectives != "auto" and chosen != "multi-worker":
        yield (
            _only_with("--collectives", "several workers", chosen),
            "between the devices of one worker use --cross-device-ops; or give --workers 2",
        )
    if asked.compress_gradients is not None and chosen not in _REDUCING:
        yield (
            _only_with("--compress-gradients", "'mirrored' and 'multi-worker'", chosen),
            "give --workers 2 or more, or leave out --compress-gradients",
        )


def _of_numerics(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    asked = settings.numerics
    if asked.xla and asked.deterministic:
        yield _without("xla", "--deterministic: XLA lacks deterministic forms of some operations")
    if asked.xla and chosen not in {"none", "one-device"}:
        yield (
            f"--xla supports one replica only, not {_used(chosen)}",
            f"remove --xla or {_FLAGS.get(chosen, '--strategy')}",
        )
    if asked.precision == "float16" and chosen == "central-storage":
        yield (
            "--precision float16 scales the loss, which 'central-storage' does not support",
            "use --precision bfloat16",
        )
    if asked.precision == "float16" and chosen == "tpu":
        yield "a TPU does not support --precision float16", "use --precision bfloat16"


def _of_parameter_servers(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    if chosen != "parameter-server":
        if chosen != "none" or settings.distribution.strategy == "auto":
            yield from _only_with_parameter_servers(settings, chosen)
        return
    yield from _of_served_workers(settings)
    asked = settings.batches
    if asked.accumulate_gradients > 1:
        yield _without("accumulate_gradients", "parameter servers: use larger batches")
    if asked.scale_learning_rate != "none":
        yield _without("scale_learning_rate", "parameter servers: each update uses one batch")
    if asked.batch_size_is != "global":
        yield _without("batch_size_is", "parameter servers: each worker takes whole batches")


def _of_evaluation(settings: Settings) -> Iterator[tuple[str, str]]:
    parse_best(settings.checkpoints.keep_best)
    if parse_early_stopping(settings.evaluation.early_stopping) is None:
        return
    if not settings.evaluation.evaluator:
        yield (
            "--early-stopping uses the metrics of an evaluator, but --evaluator is not set",
            "give --evaluator too, or use Keras' callback EarlyStopping",
        )
    if settings.distribution.strategy == "none":
        yield _without("early_stopping", "the strategy 'none', which does not change fit")


def _of_profiling(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    asked = settings.profiling.profile
    if asked is None:
        return
    parse_steps(asked)
    if chosen == "parameter-server":
        yield _without("profile", "parameter servers: each step spans several tasks")


def _only_with_parameter_servers(settings: Settings, chosen: Strategy) -> Iterator[tuple[str, str]]:
    usual = Settings().parameter_servers
    for name, value in settings.parameter_servers.model_dump().items():
        if value != getattr(usual, name):
            flag = "--" + name.replace("_", "-")
            yield (
                _only_with(flag, "the strategy 'parameter-server'", chosen),
                f"give --ps 1 and --strategy auto, or leave out {flag}",
            )


def _of_served_workers(settings: Settings) -> Iterator[tuple[str, str]]:
    asked, spread = settings.parameter_servers, settings.distribution
    if not asked.ps:
        yield "the strategy 'parameter-server' needs servers, but --ps is 0", "give --ps 1"
    if asked.max_staleness is not None and asked.backup_workers is not None:
        yield (
            "--max-staleness cannot be combined with --backup-workers",
            "synchronous gradients are never stale: leave out --max-staleness",
        )
    if asked.backup_workers is not None and asked.backup_workers >= spread.workers:
        yield (
            f"--backup-workers {asked.backup_workers} is not less than --workers {spread.workers}",
            f"give --backup-workers {spread.workers - 1} or less, or more --workers",
        )
    if spread.devices_per_worker > 1:
        yield _without("devices_per_worker", "parameter servers: give more --workers")
    if settings.numerics.deterministic and asked.backup_workers != 0:
        yield (
            "--deterministic needs synchronous updates without backup workers",
            "give --backup-workers 0: then the order of updates is fixed",
        )


def _without(option: str, given: str) -> tuple[str, str]:
    flag = "--" + option.replace("_", "-")
    return f"{flag} cannot be combined with {given}", f"leave out {flag}"


def _only_with(flag: str, supported: str, chosen: Strategy) -> str:
    return f"{flag} works only with {supported}, not with {_used(chosen)}"


def _used(chosen: Strategy) -> str:
    return "one device" if chosen == "none" else f"'{chosen}'"
