"""Training options in groups, as accepted by `train` and the command line.

Each group configures one part of the worker side. The control side builds them with
`Settings.of`; every task reads them from ``train.json``. From timonel it imports only errors and
units.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from timonel.errors import SpecError
from timonel.units import ByteSize, Seconds

Precision = Literal["float32", "bfloat16", "float16"]
Compression = Literal["bfloat16", "float16"]
CrossDeviceOps = Literal["nccl", "hierarchical", "one-device"]
Collectives = Literal["auto", "ring", "nccl"]
LearningRateRule = Literal["none", "linear", "sqrt"]
BatchSizeIs = Literal["global", "per-replica"]
Launcher = Literal["processes", "mpi"]
ChiefRole = Literal["chief", "worker"]
SuccessPolicy = Literal["auto", "chief", "all-workers"]


ANY_STALENESS = 2**31 - 1
"""The staleness bound for ``any``: no gradient is dropped or damped."""


class StrategyName(StrEnum):
    """Distribution strategy names."""

    AUTO = "auto"
    NONE = "none"
    ONE_DEVICE = "one-device"
    MIRRORED = "mirrored"
    CENTRAL_STORAGE = "central-storage"
    MULTI_WORKER = "multi-worker"
    PARAMETER_SERVER = "parameter-server"
    TPU = "tpu"


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Distribution(_Group):
    """Processes, devices, and communication between replicas."""

    strategy: StrategyName = Field(default=StrategyName.AUTO, description="How to distribute.")
    workers: int = Field(default=1, ge=1, description="The most processes that train together.")
    min_workers: int = Field(default=1, ge=1, description="The fewest that it goes on with.")
    devices_per_worker: int = Field(default=1, ge=1, description="Devices of each process.")
    launcher: Launcher = Field(default="processes", description="Who starts the processes.")
    chief: ChiefRole = Field(
        default="chief",
        description="The role of the process that leads; worker: a cluster without a chief, in "
        "which worker 0 leads.",
    )
    success_policy: SuccessPolicy = Field(
        default="auto",
        description="When the job has succeeded: once its chief has, or once all workers have; "
        "auto: the chief with parameter servers and the strategy none, else all workers.",
    )
    cross_device_ops: CrossDeviceOps | None = Field(
        default=None, description="How the devices of one process add up; None: TensorFlow's."
    )
    collectives: Collectives = Field(default="auto", description="How processes add up.")
    compress_gradients: Compression | None = Field(
        default=None, description="The type in which gradients travel between replicas."
    )


def _parse_staleness(given: object) -> object:
    return ANY_STALENESS if given == "any" else given


class ParameterServers(_Group):
    """Parameter server training: asynchronous, or synchronous with backup workers."""

    ps: int = Field(default=0, ge=0, description="How many parameter servers.")
    max_staleness: Annotated[int | None, BeforeValidator(_parse_staleness)] = Field(
        default=None,
        ge=0,
        description="Gradients computed on weights older than this many updates are dropped; the "
        "others count 1 / max(1, staleness). None: workers - 1. 'any': each counts in full.",
    )
    backup_workers: int | None = Field(
        default=None,
        ge=0,
        description="Synchronous: each step takes the fastest workers - backup_workers gradients. "
        "None: asynchronous.",
    )
    warmup_epochs: int = Field(
        default=0, ge=0, description="Epochs that one worker trains alone at first."
    )


class Numerics(_Group):
    """Precision, compilation and determinism."""

    precision: Precision = Field(default="float32", description="Computation; weights stay float32")
    xla: bool = Field(default=False, description="Compile the step with XLA.")
    deterministic: bool = Field(default=False, description="Deterministic operations only.")


class Batches(_Group):
    """Batch size semantics, gradient accumulation and learning rate scaling."""

    batch_size_is: BatchSizeIs = Field(default="global", description="What a script's size means.")
    accumulate_gradients: int = Field(
        default=1, ge=1, description="Batches whose gradients make up one update."
    )
    scale_learning_rate: LearningRateRule = Field(
        default="none", description="How the learning rate grows with the number of replicas."
    )
    learning_rate_warmup: int = Field(
        default=0, ge=0, description="Updates in which the learning rate grows to its value."
    )


class CheckpointPolicy(_Group):
    """When checkpoints are saved and which are kept."""

    checkpoint_steps: int | None = Field(
        default=None, ge=1, description="Also after every so many steps."
    )
    checkpoint_seconds: Seconds | None = Field(
        default=None, description="Also after so many seconds, at the end of a step."
    )
    keep_checkpoints: int = Field(default=2, ge=1, description="The newest that are kept.")
    keep_best: str | None = Field(
        default=None,
        description="A metric, such as val_loss or max:val_accuracy, whose best epoch is kept too.",
    )
    checkpoint_uri: str | None = Field(
        default=None, description="A folder or bucket that checkpoints are copied to."
    )


class Faults(_Group):
    """Conditions that count as failures."""

    stop_on_nan: bool = Field(default=False, description="A loss that is no number ends the job.")
    stall_timeout: Seconds | None = Field(
        default=None, description="A task that makes no step for so long is taken for hung."
    )


class Evaluation(_Group):
    """The evaluator, a task beside training that evaluates each new checkpoint."""

    evaluator: bool = Field(default=False, description="Whether there is one.")
    early_stopping: str | None = Field(
        default=None,
        description="METRIC or METRIC:PATIENCE; training ends when the evaluator's metric did not "
        "get better for so many checkpoints, or for three.",
    )


class Devices(_Group):
    """Memory and thread limits of each process."""

    memory_per_device: ByteSize | None = Field(
        default=None, description="The most memory of a GPU; None lets it grow as needed."
    )
    threads: int | None = Field(
        default=None, ge=1, description="Threads to compute with; None shares the cores evenly."
    )


class Profiling(_Group):
    """Profiled steps."""

    profile: str | None = Field(
        default=None,
        pattern=r"^\d+(:\d+)?$",
        description="Steps to profile, such as 10:20, for TensorBoard.",
    )


class Settings(_Group):
    """All option groups."""

    distribution: Distribution = Field(default_factory=Distribution)
    parameter_servers: ParameterServers = Field(default_factory=ParameterServers)
    numerics: Numerics = Field(default_factory=Numerics)
    batches: Batches = Field(default_factory=Batches)
    checkpoints: CheckpointPolicy = Field(default_factory=CheckpointPolicy)
    faults: Faults = Field(default_factory=Faults)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    devices: Devices = Field(default_factory=Devices)
    profiling: Profiling = Field(default_factory=Profiling)

    @property
    def uses_parameter_servers(self) -> bool:
        """Whether the chief trains on worker servers, with weights on parameter servers."""
        strategy = self.distribution.strategy
        asked = strategy is StrategyName.AUTO and self.parameter_servers.ps > 0
        return asked or strategy is StrategyName.PARAMETER_SERVER

    @property
    def ends_with_chief(self) -> bool:
        """Whether the job succeeds as soon as its chief does."""
        asked = self.distribution.success_policy
        alone = self.distribution.strategy is StrategyName.NONE
        return asked == "chief" or (asked == "auto" and alone and self.parameter_servers.ps > 0)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Build settings from flat option names.

        Raises:
            SpecError: A value is invalid; the message names the option.
            KeyError: An option belongs to no group.
        """
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
    "a valid integer, unable to parse string as an integer": "a whole number",
    "String should match pattern": "the form",
    "'^\\d+(:\\d+)?$'": "10 or 10:20",
}
OPTION_NAMES = tuple(_GROUP_OF)
"""Names of all options, as `train` takes them."""


def parse_workers(workers: int | str) -> tuple[int, int]:
    """Parse ``4`` or ``2:8`` into the minimum and maximum number of workers.

    Raises:
        SpecError: The text is neither a number nor a valid range.
    """
    least, colon, most = str(workers).partition(":")
    if not (least.isdecimal() and (most.isdecimal() or not colon)):
        raise SpecError(
            f"expected a number of workers such as 4, or a range such as 2:8, got {workers!r}"
        )
    bounds = int(least), int(most) if colon else int(least)
    if bounds[0] < 1:
        raise SpecError("--workers must be at least 1.")
    if bounds[0] > bounds[1]:
        raise SpecError(f"expected a range of workers that grows, such as 2:8, got {workers!r}")
    return bounds


def _explained(error: ValidationError) -> SpecError:
    first = error.errors()[0]
    place, given = str(first["loc"][-1]), first.get("input")
    wanted = str(first["msg"]).removeprefix("Value error, expected ").partition(", got ")[0]
    for theirs, ours in _WORDS.items():
        wanted = wanted.replace(theirs, ours)
    return SpecError(
        f"expected {place} of {wanted}, got {given!r}",
        hint=f"see --{place.replace('_', '-')} in 'timonel train --help'",
    )
