"""Write shards with Apache Beam: each element is the plan of one shard.

Workers read the records themselves, so no record goes through Beam. They write into the
conversion's folder, which must be visible at the same path to all of them, or exchange files with
the client through the bucket of Beam's option ``temp_location``. This package is staged for them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from timonel._version import __version__
from timonel.data.journal import Journal
from timonel.data.runners import lease
from timonel.data.runners.base import PortableWork, RemoteRunner, Report
from timonel.data.runners.exchange import Exchange
from timonel.data.runners.portable import PortableJob
from timonel.data.runners.worker_wheel import build_wheel
from timonel.data.shards import ConversionJob, ShardPlan
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import InputError, MissingExtraError, NotFoundError, SpecError
from timonel.storage import is_local, join

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

_SHOWN = 300
_START_S = 60.0
"""Time until the user is told that no worker has started."""

_logger = logging.getLogger(__name__)


class BeamRunner(RemoteRunner):
    """Runner on any engine of Apache Beam: Direct, Prism, Flink, Spark, Dataflow.

    Args:
        options: Options of the pipeline, such as ``runner=FlinkRunner,flink_master=host:8081``;
            the runner is Beam's default if it is not given.
    """

    plugin: ClassVar[str] = "beam"

    def __init__(self, options: str = "") -> None:
        self._flags = parse_options(options)
        try:
            with _without_warnings():
                _check_flags(self._flags)
        except ImportError as error:
            raise MissingExtraError("the beam runner", "beam") from error

    def run(self, job: ConversionJob, plans: Sequence[ShardPlan], report: Report) -> None:
        """Run one pipeline for all shards."""
        if isinstance(job.source.location, MemoryTable):
            raise SpecError(
                "workers of Apache Beam cannot read a table in memory",
                hint="write it to a Parquet file first, or use the local runner",
            )
        self.run_remote(PortableJob.of(job), job.journal, plans, report)

    def run_remote(
        self, work: PortableWork, journal: Journal[Any], plans: Sequence[Any], report: Report
    ) -> None:
        """Run one pipeline for all shards."""
        exchange = self._exchange(journal)
        if plans:
            self._run(work, exchange, journal, plans, report)
        exchange.remove()

    def _run(
        self,
        work: PortableWork,
        exchange: Exchange,
        journal: Journal[Any],
        plans: Sequence[Any],
        report: Report,
    ) -> None:
        exchange.offer(journal, [plan.name for plan in plans])
        error: Exception | None = None
        with (
            _terminable(),
            lease.held(exchange) as release,
            _Follower(exchange, journal, plans, report, release) as follower,
        ):
            try:
                _run(self._flags, work, exchange, plans)
            except Exception as found:  # noqa: BLE001 - Beam raises all kinds of exceptions
                error = found
        if follower.error is not None:
            raise follower.error
        if error is not None:
            raise (exchange.failure() or _explained(error)) from error
        if follower.waiting:
            raise InputError(
                f"the pipeline of Apache Beam wrote no shard {follower.waiting[0].name}",
                hint="run the same command again; if this repeats, check that its workers see the "
                "same file system, or exchange files through a bucket: --beam temp_location=URI",
            )

    def _exchange(self, journal: Journal[Any]) -> Exchange:
        found = [flag for flag in self._flags if flag.startswith("--temp_location=")]
        uri = found[-1].partition("=")[2] if found else ""
        if not uri or is_local(uri):
            return Exchange(str(journal.root.resolve()))
        return Exchange(join(uri, f"timonel-{journal.digest[:16]}"))


def _run(
    flags: Sequence[str], work: PortableWork, exchange: Exchange, plans: Sequence[Any]
) -> None:
    """Run the pipeline in the main thread, as Beam sets signal handlers; cancel if interrupted."""
    with tempfile.TemporaryDirectory(prefix="timonel-") as folder:
        result = build(flags, work, exchange, plans, Path(folder)).run()
        try:
            state = result.wait_until_finish()
        except BaseException:
            with contextlib.suppress(Exception):
                result.cancel()
            raise
    if state not in {None, "DONE"}:
        raise RuntimeError(f"it ended as {state}")


def build(
    flags: Sequence[str],
    work: PortableWork,
    exchange: Exchange,
    plans: Sequence[Any],
    folder: Path,
) -> beam.Pipeline:
    """Return the pipeline; the folder of the package must stay until the workers have it."""
    import apache_beam as beam  # noqa: PLC0415 - an extra
    from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415

    from timonel.data.runners.beam_worker import WriteShard  # noqa: PLC0415

    options = PipelineOptions(list(flags))
    if _has_own_environments(options):
        wheel = build_wheel(folder, work.packages)
        options = PipelineOptions([*flags, f"--extra_package={wheel}"])
    pipeline = beam.Pipeline(options=options)
    _ = (
        pipeline
        | "plans" >> beam.Create(list(plans))
        | "distribute" >> beam.Reshuffle()
        | "write" >> beam.ParDo(WriteShard(work, exchange, __version__))
    )
    return pipeline


def _has_own_environments(options: PipelineOptions) -> bool:
    """Tell whether workers run in environments of their own, not in this one."""
    from apache_beam.options.pipeline_options import (  # noqa: PLC0415 - an extra
        PortableOptions,
        StandardOptions,
    )

    if environment := options.view_as(PortableOptions).environment_type:
        return bool(environment != "LOOPBACK")
    runner = options.view_as(StandardOptions).runner or "DirectRunner"
    return runner.rpartition(".")[2] not in StandardOptions.LOCAL_RUNNERS


def _explained(error: Exception) -> InputError:
    """Return the last line of Beam's error."""
    text = str(error).strip() or type(error).__name__
    if "No module named 'timonel" in text:
        return InputError(
            "the workers of Apache Beam did not install timonel",
            hint="start them with the boot program of Beam's containers, or install it there",
        )
    return InputError(
        f"the pipeline of Apache Beam failed: {text.splitlines()[-1][:_SHOWN]}",
        hint="see its log; the same command continues with the finished shards",
    )


class _Follower:
    """Thread that reports shards as they are finished, and workers that do not start.

    If a report raises, the workers are stopped.
    """

    def __init__(
        self,
        exchange: Exchange,
        journal: Journal[Any],
        plans: Sequence[Any],
        report: Report,
        stop: Callable[[], None],
    ) -> None:
        self.waiting = list(plans)
        self.error: BaseException | None = None
        self._exchange = exchange
        self._journal = journal
        self._report = report
        self._stop = stop
        self._ended = threading.Event()
        self._warn_at = time.monotonic() + _START_S
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            while not self._ended.wait(self._exchange.poll_s):
                self._look()
                self._check_start()
            self._look()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self.error = error
            self._stop()

    def _check_start(self) -> None:
        """Warn once if no worker starts in time."""
        if time.monotonic() < self._warn_at:
            return
        self._warn_at = math.inf
        if not self._exchange.has_started():
            _logger.warning(
                "no worker of Apache Beam has started within %.0f s, still waiting: check the page "
                "of its engine for free workers, or stop this command",
                _START_S,
            )

    def _look(self) -> None:
        self._exchange.collect(self._journal)
        for plan in list(self.waiting):
            try:
                outcome = self._journal.outcome(plan.name)
            except NotFoundError:
                continue
            self.waiting.remove(plan)
            self._report.tick(plan.records)
            self._report.finished(outcome)


def parse_options(text: str) -> list[str]:
    """Return options of the form ``name=value,...`` as flags; values may have commas.

    The value of a switch is ``true``.
    """
    flags: list[str] = []
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals and name.replace("_", "").isalnum():
            flags.append(f"--{name}" if value == "true" else f"--{name}={value}")
        elif flags:
            flags[-1] += f",{part}"
        else:
            raise SpecError(f"expected options of Beam such as runner=FlinkRunner, got {text!r}")
    return flags


def _check_flags(flags: Sequence[str]) -> None:
    from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415 - an extra

    try:
        known = PipelineOptions(list(flags)).get_all_options()
    except SystemExit:  # of its argument parser, after it wrote the reason
        raise SpecError(f"Apache Beam rejects the options {' '.join(flags)}") from None
    names = [flag.removeprefix("--").partition("=")[0] for flag in flags]
    if wrong := [name for name in names if name not in known]:
        raise SpecError(f"Apache Beam has no option {wrong[0]!r}", hint="check its name")


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Mute the log while Beam is imported: it warns about missing extras of its own."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the remote job is cancelled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
