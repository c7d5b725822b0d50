"""Interface and registry of runners, which write the shards of a conversion.

A `RemoteRunner` also does other work in shards, such as batch prediction.

A runner calls `timonel.data.shards.write_one` for each shard: anywhere, in any order, and again
after a failure. The bytes of a shard do not depend on the runner.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol

from timonel.data.journal import Journal
from timonel.data.shards import ConversionJob, ShardPlan
from timonel.errors import SpecError

GROUP = "timonel.runners"


class Report(abc.ABC):
    """Receiver of a runner's progress."""

    @abc.abstractmethod
    def tick(self, records: int = 1) -> None:
        """Count records that were read. Thread-safe; may raise, to stop the runner."""

    @abc.abstractmethod
    def finished(self, outcome: Any) -> None:
        """Take a shard's outcome. Thread-safe; may raise, to stop the runner."""


class Runner(abc.ABC):
    """Runner of a conversion.

    Args:
        options: Options of the plug-in, as text of the form ``name=value,...``.

    Raises:
        SpecError: The options are wrong.
    """

    plugin: ClassVar[str]

    def __init__(self, options: str = "") -> None:
        if options:
            raise SpecError(
                f"the runner {self.plugin} has no options, got {options!r}",
                hint="--beam needs --runner beam",
            )

    @abc.abstractmethod
    def run(self, job: ConversionJob, plans: Sequence[ShardPlan], report: Report) -> None:
        """Write all shards; return when the journal has the outcome of each.

        If it raises, or is stopped by an exception such as `KeyboardInterrupt`, no writer is left
        behind, and the outcomes of finished shards stay in the journal.

        Args:
            job: The conversion.
            plans: The shards.
            report: Receives progress and outcomes.

        Raises:
            SpecError: The runner cannot read the job's source.
            InputError: A record cannot be read now, or a shard cannot be written.
        """


class ShardWriter(Protocol):
    """Writer of shards in a worker. Thread-safe for different shards."""

    def write(self, plan: Any, journal: Any, tick: Callable[[int], None]) -> None:
        """Write a shard, and record its outcome.

        Args:
            plan: The plan of the shard.
            journal: The journal to write into.
            tick: Called with a number of finished records; may raise, to stop the writer.

        Raises:
            TimonelError: The shard cannot be written.
        """


class PortableWork(Protocol):
    """Work in shards as values that can be pickled, for workers on any machine."""

    def journal(self, root: Path) -> Journal[Any]:
        """Return the journal in a folder."""

    @property
    def packages(self) -> Sequence[str]:
        """Names of the packages that a worker needs beside this one."""

    def open(self) -> ShardWriter:
        """Return a writer; called once per process of a worker."""


class RemoteRunner(Runner):
    """Runner on several machines, of conversions and of other work in shards."""

    @abc.abstractmethod
    def run_remote(
        self, work: PortableWork, journal: Journal[Any], plans: Sequence[Any], report: Report
    ) -> None:
        """Write all shards; see `run`.

        Args:
            work: The work.
            journal: Its journal, which gets the shards.
            plans: The shards: values that can be pickled, with ``name`` and ``records``.
            report: Receives progress and outcomes.

        Raises:
            InputError: A worker failed.
        """


def choose_runner(name: str, options: str = "") -> Runner:
    """Return the runner with a name.

    Raises:
        SpecError: No installed runner has that name, or its options are wrong.
        MissingExtraError: The runner needs a package that is not installed.
    """
    names = sorted(point.name for point in entry_points(group=GROUP))
    if name not in names:
        raise SpecError(f"expected one of the runners {', '.join(names)}, got {name!r}")
    (point,) = entry_points(group=GROUP, name=name)
    runner: type[Runner] = point.load()
    return runner(options)
