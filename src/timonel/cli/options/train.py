"""Training options of ``timonel train``; ``timonel.training`` validates them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

# Help sections.
PROGRAM = "The script and its data"
JOB = "The job"
TRACKING = "Tracking"
DISTRIBUTION = "Distribution"
PARAMETER_SERVERS = "Parameter servers"
NUMERICS = "Numerics"
BATCHES = "Batches and learning rate"
CHECKPOINTS = "Checkpoints and evaluation"
FAULTS = "Faults"
DEVICES = "Devices"
OWN_CLUSTER = "A cluster of your own"

# Distribution
Strategy = Annotated[
    Literal[
        "auto",
        "none",
        "one-device",
        "mirrored",
        "central-storage",
        "multi-worker",
        "parameter-server",
        "tpu",
    ],
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Distribution strategy; 'none' leaves it to the script.",
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Number of workers; 2:8 continues with 2 and grows to 8.",
        metavar="N[:M]",
    ),
]
Ps = Annotated[
    int,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Number of parameter servers.",
    ),
]
Evaluator = Annotated[
    bool,
    typer.Option(
        "--evaluator",
        help="Evaluate each new checkpoint in a separate process.",
        rich_help_panel=DISTRIBUTION,
    ),
]
DevicesPerWorker = Annotated[
    int,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Number of devices per worker.",
    ),
]
Launcher = Annotated[
    Literal["processes", "mpi"],
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Start tasks as processes of timonel or with mpirun.",
    ),
]
Chief = Annotated[
    Literal["chief", "worker"],
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Role of the coordinating process; 'worker' for a cluster without a chief.",
    ),
]
SuccessPolicy = Annotated[
    Literal["auto", "chief", "all-workers"],
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Tasks that must succeed; auto: the chief with 'none' or --ps, else all workers.",
    ),
]
CrossDeviceOps = Annotated[
    Literal["nccl", "hierarchical", "one-device"] | None,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="All-reduce between the devices of one process.",
    ),
]
Collectives = Annotated[
    Literal["auto", "ring", "nccl"],
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="All-reduce between processes.",
    ),
]
CompressGradients = Annotated[
    Literal["bfloat16", "float16"] | None,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Send gradients in this type.",
    ),
]

# Parameter servers
MaxStaleness = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        metavar="UPDATES|any",
        help="Drop gradients older than this many updates and scale down other old ones. "
        "[default: workers - 1]",
        show_default=False,
    ),
]
BackupWorkers = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        help="Train synchronously, ignoring this many slowest workers per step.",
    ),
]
WarmupEpochs = Annotated[
    int,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        help="Epochs that one worker trains alone before the others join.",
    ),
]

# Numerics
Precision = Annotated[
    Literal["float32", "bfloat16", "float16"],
    typer.Option(
        rich_help_panel=NUMERICS,
        help="Compute type of layers; weights stay float32.",
    ),
]
Xla = Annotated[
    bool, typer.Option("--xla", help="Compile the step with XLA.", rich_help_panel=NUMERICS)
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Use only deterministic operations.", rich_help_panel=NUMERICS
    ),
]

# Batches
BatchSizeIs = Annotated[
    Literal["global", "per-replica"],
    typer.Option(
        rich_help_panel=BATCHES,
        help="Meaning of the script's batch sizes.",
    ),
]
AccumulateGradients = Annotated[
    int,
    typer.Option(
        rich_help_panel=BATCHES,
        help="Batches accumulated for one update.",
    ),
]
ScaleLearningRate = Annotated[
    Literal["none", "linear", "sqrt"],
    typer.Option(
        rich_help_panel=BATCHES,
        help="Scale the learning rate with the number of replicas.",
    ),
]
LearningRateWarmup = Annotated[
    int,
    typer.Option(
        rich_help_panel=BATCHES,
        help="Updates over which the learning rate ramps up.",
    ),
]

# Checkpoints
CheckpointSteps = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Also save a checkpoint every N steps.",
    ),
]
CheckpointSeconds = Annotated[
    str | None,
    typer.Option(
        help="Also save a checkpoint at this interval.", metavar="TIME", rich_help_panel=CHECKPOINTS
    ),
]
KeepCheckpoints = Annotated[
    int,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Number of latest checkpoints to keep.",
    ),
]
KeepBest = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Also keep the best checkpoint by this metric.",
        metavar="[max:|min:]METRIC",
    ),
]
CheckpointUri = Annotated[
    str | None,
    typer.Option(
        help="Copy checkpoints to this folder or bucket.",
        metavar="URI",
        rich_help_panel=CHECKPOINTS,
    ),
]
EarlyStopping = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Stop after PATIENCE checkpoints (default 3) without improvement in evaluation.",
        metavar="METRIC[:PATIENCE]",
    ),
]

# Faults
StopOnNan = Annotated[
    bool,
    typer.Option(
        "--stop-on-nan", help="Stop the job if the loss is NaN or infinite.", rich_help_panel=FAULTS
    ),
]
StallTimeout = Annotated[
    str | None,
    typer.Option(
        help="Treat a task without a step for this long as hung.",
        metavar="TIME",
        rich_help_panel=FAULTS,
    ),
]

# Devices
MemoryPerDevice = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=DEVICES,
        help="Memory limit per GPU. [default: grows as needed]",
        metavar="SIZE",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=DEVICES,
        help="Threads per process. [default: an equal share of the cores]",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        help="Steps to profile for TensorBoard.", metavar="A[:B]", rich_help_panel=DEVICES
    ),
]

# User-managed cluster
Cluster = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Run as one task of this cluster, in TF_CONFIG format; 'env' reads TF_CONFIG.",
        metavar="FILE|env",
    ),
]
TaskType = Annotated[
    str | None,
    typer.Option(
        help="Role of this task in the cluster.", metavar="ROLE", rich_help_panel=OWN_CLUSTER
    ),
]
TaskIndex = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=OWN_CLUSTER, help="Index of this task within its role.", metavar="N"
    ),
]
