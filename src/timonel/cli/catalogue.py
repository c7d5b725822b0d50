"""Top-level commands: name, help section and summary.

``timonel --help`` is generated from this table alone, so that it imports no command. A test checks
that the summaries equal those of the commands.
"""

from __future__ import annotations

from dataclasses import dataclass

DAILY = "Main path"
LOOK = "List and inspect"
KEEP = "Operate"


@dataclass(frozen=True)
class CommandEntry:
    """Top-level command."""

    name: str
    section: str
    line: str
    group: str | None = None
    """Group that defines the command, if this is a shortcut to it."""

    @property
    def module(self) -> str:
        """Name of the module that defines the command."""
        return f"timonel.cli.commands.{self.group or self.name}"


ENTRIES = (
    CommandEntry("init", DAILY, "Create a sample project with a training script."),
    CommandEntry("convert", DAILY, "Convert a folder of images or a table to a dataset."),
    CommandEntry("train", DAILY, "Run a script, notebook or module on one or more workers."),
    CommandEntry("tune", DAILY, "Search for the best parameters of a script in parallel trials."),
    CommandEntry("export", DAILY, "Publish the model of a run as the next version of a name."),
    CommandEntry("serve", DAILY, "Serve a model over REST and gRPC, as TensorFlow Serving does."),
    CommandEntry(
        "deploy",
        DAILY,
        "Deploy a model as an endpoint: one address, replicas that follow load.",
    ),
    CommandEntry("predict", DAILY, "Get predictions from a model for files or rows."),
    CommandEntry(
        "runs", LOOK, "List, show, compare and delete runs: parameters, metrics, inputs, outputs."
    ),
    CommandEntry("lineage", LOOK, "Trace a dataset, run or model to its sources and products."),
    CommandEntry("jobs", LOOK, "List, show, scale, resume, stop and delete jobs."),
    CommandEntry(
        "studies", LOOK, "List, show, resume, stop and delete studies; export their best model."
    ),
    CommandEntry(
        "models",
        LOOK,
        "List, show, add, name, check, convert, bench, optimize and delete model versions.",
    ),
    CommandEntry(
        "data", LOOK, "Convert, list, show, verify, inspect, compare and delete datasets."
    ),
    CommandEntry("servers", LOOK, "List and stop running servers."),
    CommandEntry(
        "endpoints",
        LOOK,
        "List, show, scale, split, roll out, roll back, simulate and delete endpoints.",
    ),
    CommandEntry("keys", LOOK, "Create, list and revoke API keys of servers."),
    CommandEntry("logs", KEEP, "Print the output of a job's tasks.", group="jobs"),
    CommandEntry("stop", KEEP, "Stop a job and keep its checkpoints.", group="jobs"),
    CommandEntry("prune", KEEP, "Delete old runs, studies and model versions; see their sizes."),
    CommandEntry("image", KEEP, "Build container images without Docker."),
    CommandEntry(
        "cluster", KEEP, "Check a Kubernetes cluster, and prepare rights and nodes for jobs."
    ),
    CommandEntry("doctor", KEEP, "Check this machine: versions, devices, memory, performance."),
)
"""All commands, in help order."""

BY_NAME = {entry.name: entry for entry in ENTRIES}
