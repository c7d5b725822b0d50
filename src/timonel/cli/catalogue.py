"""The commands there are: name, section of the help, and one line each.

``timonel --help`` is written from this table alone, so that no command is imported for it. A test
holds the lines equal to what the commands say of themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

DAILY = "Every day"
LOOK = "Look things up"
KEEP = "Keep things running"


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
    Entry("init", DAILY, "Write a project that runs: a training script and its commands."),
    Entry("demo", DAILY, "Run the whole path on real handwritten digits."),
    Entry("convert", DAILY, "Turn a folder of images or a CSV into a dataset."),
    Entry("train", DAILY, "Run a script, notebook or module, on as many workers as you say."),
    Entry("export", DAILY, "Publish the model of a run as the next version of a name."),
    Entry("serve", DAILY, "Serve a model over REST and gRPC, as TensorFlow Serving does."),
    Entry("predict", DAILY, "Ask a model about files or rows."),
    Entry("runs", LOOK, "Past work: what went in, what was measured, what came out."),
    Entry("lineage", LOOK, "Where something came from, back to the raw files."),
    Entry("jobs", LOOK, "Jobs and their tasks: state, logs, size, stop, resume."),
    Entry("models", LOOK, "Model versions: list, show, add, check, optimize, delete."),
    Entry("data", LOOK, "Datasets: convert, show, verify."),
    Entry("servers", LOOK, "Running servers: list, stop."),
    Entry("keys", LOOK, "API keys of servers: create, list, revoke."),
    Entry("logs", KEEP, "Print what the tasks of a job have written."),
    Entry("stop", KEEP, "Stop a job; it ends as stopped, with its checkpoints."),
    Entry("migrate", KEEP, "Lift the workspace to the formats of this release."),
    Entry("doctor", KEEP, "Check this machine: versions, devices, memory, what would be faster."),
)
"""Every command, in the order of the help."""

BY_NAME = {entry.name: entry for entry in ENTRIES}
