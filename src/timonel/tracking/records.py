"""Run records: ``run.json`` and the events, folded into one value."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from timonel.errors import SpecError
from timonel.storage import normalise
from timonel.tracking.environment import is_gone
from timonel.tracking.events import FILE_NAME, FINISH, RESUME, Event, decode_number, read_events
from timonel.tracking.redaction import redact_text, redact_value

ArtifactType = Literal["files", "dataset", "source", "savedmodel", "model", "checkpoint", "report"]


class Artifact(BaseModel):
    """An input or output of a run.

    Artifacts with equal digests are the same, regardless of location. Immutable. Credentials in the
    URI or the metadata are redacted on creation, so that no record can contain them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: ArtifactType = Field(description="Type of the artifact.")
    uri: str = Field(description="Path or URI when the run recorded it.")
    digest: str | None = Field(default=None, description="Digest of its content, if known.")
    name: str | None = Field(default=None, description="Display name.")
    metadata: Mapping[str, Any] = Field(default_factory=dict, description="Further facts, as JSON.")

    def __init__(  # - positional arguments, which pydantic does not take by itself
        self,
        type: ArtifactType,  # noqa: A002 - the field's name in every record
        uri: str | os.PathLike[str],
        digest: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **ignored: Any,
    ) -> None:
        super().__init__(
            type=type, uri=uri, digest=digest, name=name, metadata=dict(metadata or {}), **ignored
        )

    @field_validator("uri", mode="before")
    @classmethod
    def _one_spelling(cls, uri: str | os.PathLike[str]) -> str:
        return redact_text(normalise(uri))

    @field_validator("metadata")
    @classmethod
    def _without_secrets(cls, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        redacted: Mapping[str, Any] = redact_value(metadata)
        return redacted

    @property
    def label(self) -> str:
        """Name, or the last part of the URI."""
        return self.name or self.uri.rstrip("/").rpartition("/")[2] or self.uri

    @property
    def short_digest(self) -> str:
        """First 12 digits of the digest; empty without a digest."""
        return self.digest.rpartition(":")[2][:12] if self.digest else ""


_logger = logging.getLogger(__name__)

RunStatus = Literal["running", "succeeded", "failed", "stopped", "lost"]
_FINAL = ("succeeded", "failed", "stopped")


class _Read(BaseModel):
    # Another release may have written the record, so unknown keys are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class MetricPoint(_Read):
    """A value of a metric."""

    t: float = Field(description="Time of recording, in Unix seconds.")
    value: float = Field(description="Value; may be NaN or infinite.")
    step: int | None = Field(default=None, description="Training step.")
    epoch: int | None = Field(default=None, description="Epoch, from 0.")


class RunHeader(_Read):
    """Content of ``run.json``: known at the start, never changed."""

    id: str = Field(description="ID of the run.")
    kind: str = Field(alias="run_kind", description="Kind of work: convert, train, export, ...")
    name: str | None = Field(default=None, description="Display name.")
    created_at: float = Field(description="Start time, in Unix seconds.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters at the start.")
    inputs: tuple[Artifact, ...] = Field(default=(), description="Artifacts that it reads.")
    command: tuple[str, ...] = Field(default=(), description="Command line, redacted.")
    environment: dict[str, Any] = Field(default_factory=dict, description="Machine and packages.")
    git: dict[str, Any] | None = Field(default=None, description="Git state of the code.")
    job_id: str | None = Field(default=None, description="ID of the job that does the work.")
    engine: str | None = Field(default=None, description="Engine of the job.")
    parent: str | None = Field(default=None, description="ID of the study that it belongs to.")
    process: dict[str, Any] | None = Field(default=None, description="Its process, without a job.")
    timonel: str = Field(default="", description="Release that wrote the record.")


class RunRecord(_Read):
    """Snapshot of a run: its header and its events, folded."""

    header: RunHeader = Field(description="Content of run.json.")
    folder: Path = Field(description="Folder of the run.")
    status: RunStatus = Field(default="running", description="Status; final after a finish event.")
    message: str | None = Field(default=None, description="Reason for its end, for people.")
    cause: str | None = Field(default=None, description="Reason for its end, for programs.")
    ended_at: float | None = Field(default=None, description="End time, in Unix seconds.")
    last_event_at: float | None = Field(default=None, description="Time of the last event.")
    params: dict[str, Any] = Field(default_factory=dict, description="All parameters.")
    series: dict[str, tuple[MetricPoint, ...]] = Field(
        default_factory=dict, description="Values of every metric; the last one of each step."
    )
    inputs: tuple[Artifact, ...] = Field(default=(), description="Artifacts that it has read.")
    outputs: tuple[Artifact, ...] = Field(default=(), description="Artifacts that it has created.")
    devices: dict[str, Any] = Field(
        default_factory=dict, description="Devices that its job used last, and how."
    )
    restarts: int = Field(default=0, description="Number of restarts.")
    machine: str | None = Field(default=None, description="Machine that ran it last.")
    skipped_lines: int = Field(default=0, description="Number of unusable event lines.")

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<run {self.id}{name} {self.status} {self.metrics}>"

    @property
    def id(self) -> str:
        """ID of the run."""
        return self.header.id

    @property
    def kind(self) -> str:
        """Kind of work, such as ``train`` or ``export``."""
        return self.header.kind

    @property
    def name(self) -> str | None:
        """Name given by the user, if any."""
        return self.header.name

    @property
    def script(self) -> str | None:
        """Name of the file or module that it runs, if any."""
        return next((item.label for item in self.inputs if item.type == "source"), None)

    @property
    def job_id(self) -> str | None:
        """ID of the job that does the work, if any."""
        return self.header.job_id

    @property
    def parent(self) -> str | None:
        """ID of the study that it belongs to, if any."""
        return self.header.parent

    @property
    def started_at(self) -> float:
        """Start time, in Unix seconds."""
        return self.header.created_at

    @property
    def metrics(self) -> dict[str, float]:
        """Last value of every metric."""
        return {name: points[-1].value for name, points in self.series.items()}

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self.status != "running"

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the end, or to now."""
        return max(0.0, (self.ended_at or time.time()) - self.started_at)

    def events(self) -> list[Event]:
        """Read the run's current events."""
        return read_events(self.folder / FILE_NAME)[0]


def fold(header: RunHeader, folder: Path, events: Sequence[Event], skipped: int = 0) -> RunRecord:
    """Return the record for a header and its events.

    Args:
        header: The content of ``run.json``.
        folder: The run's folder.
        events: All its events, in order.
    """
    params = dict(header.params)
    for event in events:
        if event["type"] == "params" and isinstance(event.get("params"), dict):
            params.update(event["params"])
    end = _last_end(events)
    last_at = float(events[-1]["t"]) if events else None
    return RunRecord(
        header=header,
        folder=folder,
        **_end(header, end, last_at),
        last_event_at=last_at,
        params=params,
        series=_series(events),
        inputs=_distinct((*header.inputs, *event_artifacts(events, "input"))),
        outputs=_distinct(event_artifacts(events, "output")),
        devices=_devices(events),
        restarts=_restarts(events),
        machine=_machine(header, events),
        skipped_lines=skipped,
    )


def _restarts(events: Sequence[Event]) -> int:
    """Return the number of restarts, without the starts of resumed jobs."""
    count, is_resumed = 0, False
    for event in events:
        if event["type"] == RESUME:
            is_resumed = True
        elif event["type"] == "restart":
            # Tasks call each start after the first one a restart; only failures have a message.
            count += not is_resumed or "message" in event
            is_resumed = False
    return count


def _last_end(events: Sequence[Event]) -> Event | None:
    """Return the first finish event since the run was last resumed."""
    end = None
    for event in events:
        if event["type"] == RESUME:
            end = None
        elif event["type"] == FINISH:
            end = end or event
    return end


def _end(header: RunHeader, end: Event | None, last_at: float | None) -> dict[str, Any]:
    if end is not None:
        status = end.get("status")
        return {
            "status": status if status in _FINAL else "failed",
            "ended_at": float(end["t"]),
            "message": _text(end.get("message")),
            "cause": _text(end.get("cause")),
        }
    if header.process is not None and is_gone(header.process):
        ended = last_at if last_at is not None else header.created_at
        return {"status": "lost", "ended_at": ended, "message": "its process died"}
    return {}


def _machine(header: RunHeader, events: Sequence[Event]) -> str | None:
    """Return the name of the machine on which the run started or was last resumed."""
    hosts = [event.get("host") for event in events if event["type"] == RESUME]
    named = [text for host in hosts if (text := _text(host))]
    return named[-1] if named else _text(header.environment.get("host"))


def _devices(events: Iterable[Event]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        if event["type"] == "devices":
            found |= {name: value for name, value in event.items() if name not in {"t", "type"}}
    return found


def _series(events: Iterable[Event]) -> dict[str, tuple[MetricPoint, ...]]:
    # After a restart the same steps are reported again: the later value counts.
    series: dict[str, dict[object, MetricPoint]] = {}
    for number, event in enumerate(events):
        values = event.get("metrics")
        if event["type"] != "metrics" or not isinstance(values, Mapping):
            continue
        step, epoch = _whole(event.get("step")), _whole(event.get("epoch"))
        place: object = number if step is None and epoch is None else (step, epoch)
        for name, value in values.items():
            decoded = decode_number(value)
            if decoded is not None:
                point = MetricPoint(t=event["t"], value=decoded, step=step, epoch=epoch)
                points = series.setdefault(name, {})
                points.pop(place, None)
                points[place] = point
    return {name: tuple(points.values()) for name, points in series.items()}


def event_artifacts(events: Iterable[Event], type_: str) -> Iterator[Artifact]:
    """Yield the artifacts of events of one type; log invalid ones."""
    for event in events:
        if event["type"] == type_:
            try:
                yield Artifact.model_validate(event.get("artifact"))
            except (ValidationError, TypeError, SpecError) as error:
                _logger.warning("skipped an invalid artifact: %s", first_line(error))


def _distinct(artifacts: Iterable[Artifact]) -> tuple[Artifact, ...]:
    return tuple({(item.uri, item.digest): item for item in artifacts}.values())


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def first_line(error: BaseException) -> str:
    """Return an error's text as one line, truncated for a message."""
    return " ".join(str(error).split())[:200]
