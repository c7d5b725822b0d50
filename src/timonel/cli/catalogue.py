"""The commands there are: name, section of the help, and one line each.

``timonel --help`` is written from this table alone, so that no command is imported for it. A test
holds the lines equal to what the commands say of themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

DAILY = "Main path"
LOOK = "List and inspect"
KEEP = "Operate"


@dataclass(frozen=True)
class Entry:
    """One command of the top level."""

    name: str
    section: str
    line: str

    @property
    def module(self) -> str:
        """The module that defines the command."""
        return f"timonel.cli.commands.{self.name}"


ENTRIES = (
    Entry("init", DAILY, "Create a sample project with a training script."),
    Entry("demo", DAILY, "Run the whole path on real handwritten digits."),
    Entry("convert", DAILY, "Convert a folder of images or a CSV file to a dataset."),
    Entry("train", DAILY, "Run a script, notebook or module on one or more workers."),
    Entry("export", DAILY, "Publish the model of a run as the next version of a name."),
    Entry("serve", DAILY, "Serve a model over REST and gRPC, as TensorFlow Serving does."),
    Entry("predict", DAILY, "Get predictions from a model for files or rows."),
    Entry("runs", LOOK, "List, show and compare runs: parameters, metrics, inputs, outputs."),
    Entry("lineage", LOOK, "Show which data, runs and models something was made from."),
    Entry("jobs", LOOK, "List, show, scale, resume and stop jobs."),
    Entry("models", LOOK, "List, show, add, check, optimize and delete model versions."),
    Entry("data", LOOK, "Convert, list, show and verify datasets."),
    Entry("servers", LOOK, "List and stop running servers."),
    Entry("keys", LOOK, "Create, list and revoke API keys of servers."),
    Entry("logs", KEEP, "Print the output of a job's tasks."),
    Entry("stop", KEEP, "Stop a job and keep its checkpoints."),
    Entry("migrate", KEEP, "Upgrade the workspace to the file formats of this release."),
    Entry("doctor", KEEP, "Check this machine: versions, devices, memory, performance."),
)
"""Every command, in the order of the help."""

BY_NAME = {entry.name: entry for entry in ENTRIES}
