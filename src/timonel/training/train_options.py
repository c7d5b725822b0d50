"""Options of `timonel.train` and ``timonel train``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from timonel.options import Option

Precision = Literal["float32", "bfloat16", "float16"]
Compression = Literal["bfloat16", "float16"]
CrossDeviceOps = Literal["nccl", "hierarchical", "one-device"]
Collectives = Literal["auto", "ring", "nccl"]
LearningRateRule = Literal["none", "linear", "sqrt"]
BatchSizeIs = Literal["global", "per-replica"]
Launcher = Literal["processes", "mpi"]
ChiefRole = Literal["chief", "worker"]
SuccessPolicy = Literal["auto", "chief", "all-workers"]
Strategy = Literal[
    "auto",
    "none",
    "one-device",
    "mirrored",
    "central-storage",
    "multi-worker",
    "parameter-server",
    "tpu",
]

# Sections of the command line's help.
PROGRAM = "The script and its data"
DISTRIBUTION = "Distribution"
CLUSTER = "A cluster of your own"
PARAMETER_SERVERS = "Parameter servers"
NUMERICS = "Numerics"
BATCHES = "Batches and learning rate"
CHECKPOINTS = "Checkpoints and evaluation"
FAULTS = "Faults"
DEVICES = "Devices"
MACHINES = "Machines of a cluster"
JOB = "The job"
TRACKING = "Tracking"


class TrainOptions(TypedDict, total=False):
    """Options of a training job."""

    seed: Annotated[
        int | None,
        Option(
            None,
            "Seed of Keras, NumPy and TensorFlow. Also of Python's random, in every task.",
            PROGRAM,
            computed="random",
        ),
    ]
    pass_job_dir: Annotated[
        bool, Option(False, "Also pass --job-dir=FOLDER to the script.", PROGRAM)
    ]
    strategy: Annotated[
        Strategy,
        Option(
            "auto",
            "Distribution strategy; 'none' leaves it to the script. A script with 'none' gets "
            "TF_CONFIG and nothing else.",
            DISTRIBUTION,
        ),
    ]
    workers: Annotated[
        int | str,
        Option(
            1,
            "Number of workers; 2:8 continues with 2 and grows to 8.",
            DISTRIBUTION,
            metavar="N[:M]",
        ),
    ]
    ps: Annotated[int, Option(0, "Number of parameter servers.", DISTRIBUTION)]
    evaluator: Annotated[
        bool, Option(False, "Evaluate each new checkpoint in a separate process.", DISTRIBUTION)
    ]
    devices_per_worker: Annotated[
        int,
        Option(
            1,
            "Number of devices per worker. They are GPUs, or logical CPU devices without GPUs.",
            DISTRIBUTION,
        ),
    ]
    launcher: Annotated[
        Launcher,
        Option("processes", "Start tasks as processes of timonel or with mpirun.", DISTRIBUTION),
    ]
    cross_device_ops: Annotated[
        CrossDeviceOps | None,
        Option(
            None,
            "All-reduce between the devices of one process.",
            DISTRIBUTION,
            computed="TensorFlow's choice",
        ),
    ]
    collectives: Annotated[
        Collectives, Option("auto", "All-reduce between processes.", DISTRIBUTION)
    ]
    compress_gradients: Annotated[
        Compression | None, Option(None, "Compress exchanged gradients to this type.", DISTRIBUTION)
    ]
    chief: Annotated[
        ChiefRole,
        Option(
            "chief",
            "Role of the coordinating process; 'worker' for a cluster without a chief. Worker 0 "
            "then coordinates.",
            CLUSTER,
        ),
    ]
    success_policy: Annotated[
        SuccessPolicy,
        Option(
            "auto",
            "Tasks that must succeed; auto: the chief with 'none' or --ps, else all workers.",
            CLUSTER,
        ),
    ]
    cluster: Annotated[
        str | os.PathLike[str] | None,
        Option(
            None,
            "Run as one task of this cluster, in TF_CONFIG format; 'env' reads TF_CONFIG. No job "
            "is started on an engine. All tasks of the cluster need one workspace.",
            CLUSTER,
            metavar="FILE|env",
        ),
    ]
    task_type: Annotated[
        str | None,
        Option(
            None,
            "Role of this task in the cluster. Not needed if the cluster file has it.",
            CLUSTER,
            metavar="ROLE",
        ),
    ]
    task_index: Annotated[
        int | None, Option(None, "Index of this task within its role.", CLUSTER, metavar="N")
    ]
    max_staleness: Annotated[
        int | str | None,
        Option(
            None,
            "Drop gradients older than this many updates and scale down other old ones. Others "
            "count 1 / max(1, staleness); with 'any', each counts in full.",
            PARAMETER_SERVERS,
            computed="workers - 1",
            metavar="UPDATES|any",
        ),
    ]
    backup_workers: Annotated[
        int | None,
        Option(
            None,
            "Train synchronously, ignoring this many slowest workers per step.",
            PARAMETER_SERVERS,
        ),
    ]
    warmup_epochs: Annotated[
        int,
        Option(0, "Epochs that one worker trains alone before the others join.", PARAMETER_SERVERS),
    ]
    precision: Annotated[
        Precision, Option("float32", "Compute type of layers; weights stay float32.", NUMERICS)
    ]
    xla: Annotated[bool, Option(False, "Compile the step with XLA.", NUMERICS)]
    deterministic: Annotated[bool, Option(False, "Use only deterministic operations.", NUMERICS)]
    batch_size_is: Annotated[
        BatchSizeIs, Option("global", "Meaning of the script's batch sizes.", BATCHES)
    ]
    accumulate_gradients: Annotated[int, Option(1, "Batches accumulated for one update.", BATCHES)]
    scale_learning_rate: Annotated[
        LearningRateRule,
        Option("none", "Scale the learning rate with the number of replicas.", BATCHES),
    ]
    learning_rate_warmup: Annotated[
        int, Option(0, "Updates over which the learning rate ramps up.", BATCHES)
    ]
    checkpoint_steps: Annotated[
        int | None,
        Option(
            None,
            "Also save a checkpoint every N steps. One is saved after each epoch.",
            CHECKPOINTS,
        ),
    ]
    checkpoint_seconds: Annotated[
        float | str | None,
        Option(
            None,
            "Also save a checkpoint at this interval. It is saved at the end of a step.",
            CHECKPOINTS,
            metavar="TIME",
        ),
    ]
    keep_checkpoints: Annotated[
        int, Option(2, "Number of latest checkpoints to keep.", CHECKPOINTS)
    ]
    keep_best: Annotated[
        str | None,
        Option(
            None,
            "Also keep the best checkpoint by this metric. Examples: val_loss, max:val_accuracy.",
            CHECKPOINTS,
            metavar="[max:|min:]METRIC",
        ),
    ]
    checkpoint_uri: Annotated[
        str | None,
        Option(None, "Copy checkpoints to this folder or bucket.", CHECKPOINTS, metavar="URI"),
    ]
    early_stopping: Annotated[
        str | None,
        Option(
            None,
            "Stop after PATIENCE checkpoints (default 3) without improvement in evaluation. Needs "
            "the evaluator.",
            CHECKPOINTS,
            metavar="METRIC[:PATIENCE]",
        ),
    ]
    stop_on_nan: Annotated[
        bool, Option(False, "Stop the job if the loss is NaN or infinite.", FAULTS)
    ]
    stall_timeout: Annotated[
        float | str | None,
        Option(None, "Treat a task without a step for this long as hung.", FAULTS, metavar="TIME"),
    ]
    memory_per_device: Annotated[
        int | str | None,
        Option(None, "Memory limit per GPU.", DEVICES, computed="grows as needed", metavar="SIZE"),
    ]
    threads: Annotated[
        int | None,
        Option(None, "Threads per process.", DEVICES, computed="an equal share of the cores"),
    ]
    profile: Annotated[
        str | None,
        Option(None, "Steps to profile for TensorBoard. Example: 10:20.", DEVICES, metavar="A[:B]"),
    ]
    gpus: Annotated[
        int | None, Option(None, "GPUs of each task, except parameter servers.", MACHINES, least=1)
    ]
    accelerator: Annotated[
        Sequence[str],
        Option(
            (),
            "Other accelerators of each task. Example: google.com/tpu=4.",
            MACHINES,
            metavar="TYPE=COUNT",
        ),
    ]
    cpus: Annotated[float | None, Option(None, "CPUs of each task.", MACHINES)]
    memory: Annotated[
        int | str | None, Option(None, "Memory of each task.", MACHINES, metavar="SIZE")
    ]
    node_selector: Annotated[
        Sequence[str],
        Option((), "Label of the nodes that may run tasks.", MACHINES, metavar="LABEL=VALUE"),
    ]
    toleration: Annotated[
        Sequence[str],
        Option((), "Taint of nodes that tasks accept.", MACHINES, metavar="KEY[=VALUE][:EFFECT]"),
    ]
    priority_class: Annotated[
        str | None, Option(None, "Priority class of tasks.", MACHINES, metavar="NAME")
    ]
    volume: Annotated[
        Sequence[str],
        Option(
            (),
            "Storage mounted into tasks: pvc://NAME, configmap://NAME, secret://NAME or "
            "emptydir://. Example: pvc://photos:/photos:ro.",
            MACHINES,
            metavar="SOURCE:PATH[:ro]",
        ),
    ]
    image: Annotated[
        str | None,
        Option(None, "Container image of tasks.", MACHINES, computed="TIMONEL_KUBERNETES_IMAGE"),
    ]
    name: Annotated[str | None, Option(None, "Name of the run.", JOB)]
    max_restarts: Annotated[int, Option(3, "Maximum restarts after a lost process.", JOB)]
    max_runtime: Annotated[
        float | str | None,
        Option(
            None,
            "Maximum run time, such as 8h, counted once all tasks are ready. The job then saves a "
            "checkpoint and fails; resuming restarts the limit.",
            JOB,
            metavar="TIME",
        ),
    ]
    warm: Annotated[
        bool,
        Option(
            True,
            "Start from a process with TensorFlow imported; it holds about 700 MB and exits 10 "
            "minutes after its last job (TIMONEL_WARM_LINGER).",
            JOB,
        ),
    ]
    wandb: Annotated[bool, Option(False, "Copy the run to Weights & Biases.", TRACKING)]
    wandb_project: Annotated[
        str | None,
        Option(None, "W&B project.", TRACKING, computed="name of the dataset", metavar="NAME"),
    ]
