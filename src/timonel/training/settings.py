"""Training options in groups, as tasks read them from ``train.json``.

Each group configures one part of the worker side. `TrainOptions` describes the options; the
control side builds the groups with `Settings.of`. From timonel it imports only errors, options and
units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from timonel.errors import SpecError
from timonel.training.train_options import (
    BatchSizeIs,
    ChiefRole,
    Collectives,
    Compression,
    CrossDeviceOps,
    Launcher,
    LearningRateRule,
    Precision,
    Strategy,
    SuccessPolicy,
)
from timonel.units import ByteSize, Seconds

ANY_STALENESS = 2**31 - 1
"""The staleness bound for ``any``: no gradient is dropped or damped."""


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
MAX_TASKS = 10_000
"""Maximum number of workers and of parameter servers, as of engines."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Distribution(_Group):
    """Processes, devices, and communication between replicas."""

    strategy: Strategy = "auto"
    workers: Annotated[Positive, Field(le=MAX_TASKS)] = 1
    """The maximum; a job may continue with as few as `min_workers`."""
    min_workers: Positive = 1
    devices_per_worker: Positive = 1
    launcher: Launcher = "processes"
    chief: ChiefRole = "chief"
    success_policy: SuccessPolicy = "auto"
    cross_device_ops: CrossDeviceOps | None = None
    collectives: Collectives = "auto"
    compress_gradients: Compression | None = None


def _parse_staleness(given: object) -> object:
    return ANY_STALENESS if given == "any" else given


class ParameterServers(_Group):
    """Parameter server training: asynchronous, or synchronous with backup workers."""

    ps: Annotated[Count, Field(le=MAX_TASKS)] = 0
    max_staleness: Annotated[Count | None, BeforeValidator(_parse_staleness)] = None
    backup_workers: Count | None = None
    warmup_epochs: Count = 0


class Numerics(_Group):
    """Precision, compilation and determinism."""

    precision: Precision = "float32"
    xla: bool = False
    deterministic: bool = False


class Batches(_Group):
    """Batch size semantics, gradient accumulation and learning rate scaling."""

    batch_size_is: BatchSizeIs = "global"
    accumulate_gradients: Positive = 1
    scale_learning_rate: LearningRateRule = "none"
    learning_rate_warmup: Count = 0


class CheckpointPolicy(_Group):
    """When checkpoints are saved and which are kept."""

    checkpoint_steps: Positive | None = None
    checkpoint_seconds: Seconds | None = None
    keep_checkpoints: Positive = 2
    keep_best: str | None = None
    checkpoint_uri: str | None = None


class FaultSettings(_Group):
    """Conditions that count as failures."""

    stop_on_nan: bool = False
    stall_timeout: Seconds | None = None


class Evaluation(_Group):
    """The evaluator, a task beside training that evaluates each new checkpoint."""

    evaluator: bool = False
    early_stopping: str | None = None


class Devices(_Group):
    """Memory and thread limits of each process."""

    memory_per_device: ByteSize | None = None
    threads: Positive | None = None


class Profiling(_Group):
    """Profiled steps."""

    profile: str | None = Field(default=None, pattern=r"^\d+(:\d+)?$")


class Settings(_Group):
    """All option groups."""

    distribution: Distribution = Distribution()
    parameter_servers: ParameterServers = ParameterServers()
    numerics: Numerics = Numerics()
    batches: Batches = Batches()
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    faults: FaultSettings = FaultSettings()
    evaluation: Evaluation = Evaluation()
    devices: Devices = Devices()
    profiling: Profiling = Profiling()

    @property
    def uses_parameter_servers(self) -> bool:
        """Whether the chief trains on worker servers, with weights on parameter servers."""
        strategy = self.distribution.strategy
        asked = strategy == "auto" and self.parameter_servers.ps > 0
        return asked or strategy == "parameter-server"

    @property
    def ends_with_chief(self) -> bool:
        """Whether the job succeeds as soon as its chief does."""
        asked = self.distribution.success_policy
        alone = self.distribution.strategy == "none"
        return asked == "chief" or (asked == "auto" and alone and self.parameter_servers.ps > 0)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Build settings from flat option names; errors name the option."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            groups.setdefault(_GROUP_OF[name], {})[name] = value
        try:
            return cls.model_validate(groups)
        except ValidationError as error:
            raise _explained(error) from None


_GROUP_OF = {
    name: group
    for group, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, _Group)
    for name in field.annotation.model_fields
}
_WORDS = {
    "Input should be ": "",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "String should match pattern '^\\d+(:\\d+)?$'": "a step such as 10 or a range such as 10:20",
}
OPTION_NAMES = tuple(_GROUP_OF)
"""Names of all options, as `train` takes them."""


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Build settings from complete options of `train`; those of the job itself are ignored."""
    least, most = parse_workers(options["workers"])
    chosen = {name: options[name] for name in OPTION_NAMES if name in options}
    return Settings.of({**chosen, "workers": most, "min_workers": least})


def parse_workers(workers: int | str) -> tuple[int, int]:
    """Parse ``4`` or ``2:8`` into the minimum and maximum number of workers."""
    least, colon, most = str(workers).partition(":")
    if not (least.isdecimal() and (most.isdecimal() or not colon)):
        raise SpecError(
            f"--workers must be a number such as 4 or a range such as 2:8, got {workers!r}"
        )
    bounds = int(least), int(most) if colon else int(least)
    if bounds[0] < 1:
        raise SpecError("--workers must be at least 1")
    if bounds[0] > bounds[1]:
        raise SpecError(f"--workers must be a range that grows, such as 2:8, got {workers!r}")
    return bounds


def _explained(error: ValidationError) -> SpecError:
    first = error.errors()[0]
    flag = f"--{str(first['loc'][-1]).replace('_', '-')}"
    rule = str(first["msg"]).removeprefix("Value error, expected ").partition(", got ")[0]
    for theirs, ours in _WORDS.items():
        rule = rule.replace(theirs, ours)
    return SpecError(
        f"{flag} must be {rule}, got {first.get('input')!r}", hint="see 'timonel train --help'"
    )
