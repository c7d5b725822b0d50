"""Options of ``timonel train`` that say how one trains; the rules are the package training's."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

# The sections of the help.
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
        help="How training is distributed; 'none' leaves it to the script.",
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Processes that train together; 2:8 goes on with 2 and grows to 8.",
        metavar="N[:M]",
    ),
]
Ps = Annotated[
    int,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Parameter servers.",
    ),
]
Evaluator = Annotated[
    bool,
    typer.Option(
        "--evaluator",
        help="Evaluate each new checkpoint beside training.",
        rich_help_panel=DISTRIBUTION,
    ),
]
DevicesPerWorker = Annotated[
    int,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Devices of each worker.",
    ),
]
Launcher = Annotated[
    Literal["processes", "mpi"],
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="Who starts the tasks: timonel, or mpirun.",
    ),
]
Chief = Annotated[
    Literal["chief", "worker"],
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Role of the process that leads; 'worker': a cluster without a chief.",
    ),
]
SuccessPolicy = Annotated[
    Literal["auto", "chief", "all-workers"],
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Whose end is the job's; auto: the chief's with 'none' and --ps, else all workers'.",
    ),
]
CrossDeviceOps = Annotated[
    Literal["nccl", "hierarchical", "one-device"] | None,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="How the devices of a process add up.",
    ),
]
Collectives = Annotated[
    Literal["auto", "ring", "nccl"],
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="How processes add up.",
    ),
]
CompressGradients = Annotated[
    Literal["bfloat16", "float16"] | None,
    typer.Option(
        rich_help_panel=DISTRIBUTION,
        help="The type in which gradients travel.",
    ),
]

# Parameter servers
MaxStaleness = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        metavar="UPDATES|any",
        help="Drop gradients that are older than so many updates, and damp the others. "
        "[default: workers - 1]",
        show_default=False,
    ),
]
BackupWorkers = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        help="Synchronous steps, each without the so many slowest workers.",
    ),
]
WarmupEpochs = Annotated[
    int,
    typer.Option(
        rich_help_panel=PARAMETER_SERVERS,
        help="Epochs that one worker trains alone at first.",
    ),
]

# Numerics
Precision = Annotated[
    Literal["float32", "bfloat16", "float16"],
    typer.Option(
        rich_help_panel=NUMERICS,
        help="In which layers compute; weights stay float32.",
    ),
]
Xla = Annotated[
    bool, typer.Option("--xla", help="Compile the step with XLA.", rich_help_panel=NUMERICS)
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Use deterministic operations only.", rich_help_panel=NUMERICS
    ),
]

# Batches
BatchSizeIs = Annotated[
    Literal["global", "per-replica"],
    typer.Option(
        rich_help_panel=BATCHES,
        help="What the script's batch sizes mean.",
    ),
]
AccumulateGradients = Annotated[
    int,
    typer.Option(
        rich_help_panel=BATCHES,
        help="Batches whose gradients make up one update.",
    ),
]
ScaleLearningRate = Annotated[
    Literal["none", "linear", "sqrt"],
    typer.Option(
        rich_help_panel=BATCHES,
        help="How the learning rate grows with the replicas.",
    ),
]
LearningRateWarmup = Annotated[
    int,
    typer.Option(
        rich_help_panel=BATCHES,
        help="Updates in which the learning rate grows to its value.",
    ),
]

# Checkpoints
CheckpointSteps = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Save state after every so many steps too.",
    ),
]
CheckpointSeconds = Annotated[
    str | None,
    typer.Option(
        help="Save state after so many seconds too.", metavar="TIME", rich_help_panel=CHECKPOINTS
    ),
]
KeepCheckpoints = Annotated[
    int,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="How many of the newest are kept.",
    ),
]
KeepBest = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="Keep the best epoch by this metric too.",
        metavar="[max:|min:]METRIC",
    ),
]
CheckpointUri = Annotated[
    str | None,
    typer.Option(
        help="A folder or bucket they are copied to.", metavar="URI", rich_help_panel=CHECKPOINTS
    ),
]
EarlyStopping = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=CHECKPOINTS,
        help="End when so many checkpoints, or three, are no better for the evaluator.",
        metavar="METRIC[:PATIENCE]",
    ),
]

# Faults
StopOnNan = Annotated[
    bool,
    typer.Option(
        "--stop-on-nan", help="A loss that is no number ends the job.", rich_help_panel=FAULTS
    ),
]
StallTimeout = Annotated[
    str | None,
    typer.Option(
        help="A task without a step for so long is hung.", metavar="TIME", rich_help_panel=FAULTS
    ),
]

# Devices
MemoryPerDevice = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=DEVICES,
        help="The most memory of each GPU; else it grows as needed.",
        metavar="SIZE",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=DEVICES,
        help="Threads of each process; else they share the cores.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        help="Steps to profile for TensorBoard.", metavar="A[:B]", rich_help_panel=DEVICES
    ),
]

# A cluster of the user's
Cluster = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=OWN_CLUSTER,
        help="Be one task of this cluster, given as in TF_CONFIG; 'env' takes that variable.",
        metavar="FILE|env",
    ),
]
TaskType = Annotated[
    str | None,
    typer.Option(
        help="The role of this task in the cluster.", metavar="ROLE", rich_help_panel=OWN_CLUSTER
    ),
]
TaskIndex = Annotated[
    int | None,
    typer.Option(rich_help_panel=OWN_CLUSTER, help="Its index within the role.", metavar="N"),
]
