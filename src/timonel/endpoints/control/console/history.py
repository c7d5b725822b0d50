"""Load, replicas and events of an endpoint in the last hour.

The points are kept in memory and in a file of JSON lines, so that they outlive the control plane.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from timonel.endpoints.folder import EndpointStatus, ObservedVersion
from timonel.engines.resources import Observed
from timonel.errors import InputError
from timonel.storage.atomic import append_line, parse_lines, write_text

PERIOD_S: Final = 5.0
"""Time between two points."""
SPAN_S: Final = 3600.0
_GAP_S: Final = 3 * PERIOD_S
"""Without a point for longer, plots are interrupted."""
_TOTALS: Final = ("concurrency", "held", "ready", "desired")
_MAX_LINES: Final = int(2 * SPAN_S / PERIOD_S)


class Sample(Observed):
    """Load and replicas of one version at one time.

    Attributes:
        rate: Requests per second; None if not measured.
        concurrency: Requests in flight, waiting ones included; None if not measured.
        held: Requests that wait for a first replica.
        ready: Replicas that accept requests.
        desired: Replicas that the autoscaler requests.
    """

    rate: float | None = None
    concurrency: float | None = None
    held: int = 0
    ready: int = 0
    desired: int = 0


class EndpointPoint(Observed):
    """An endpoint at one time.

    Attributes:
        at: Time in seconds since the epoch.
        versions: Samples by version.
        events: What has changed since the point before.
    """

    at: float
    versions: Mapping[int, Sample] = {}
    events: tuple[str, ...] = ()


class History:
    """Points of the last hour. One thread may add points while others read.

    Args:
        path: File of the points; created with the first one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0
        self.points: tuple[EndpointPoint, ...] = self._read()

    def add(self, point: EndpointPoint) -> None:
        """Add a point."""
        points = [each for each in self.points if each.at >= point.at - SPAN_S]
        _append(points, point)
        self.points = tuple(points)
        if self._lines >= _MAX_LINES:
            write_text(self._path, "".join(f"{_line(each)}\n" for each in self.points))
            self._lines = len(self.points)
        else:
            append_line(self._path, _line(point))
            self._lines += 1

    def _read(self) -> tuple[EndpointPoint, ...]:
        """Return the points in the file; none if it cannot be read."""
        found: list[EndpointPoint] = []
        with contextlib.suppress(InputError):
            for point in parse_lines(self._path, EndpointPoint.model_validate_json):
                _append(found, point)
                self._lines += 1
        return tuple(found)


def _append(points: list[EndpointPoint], point: EndpointPoint) -> None:
    """Append a point; after the clock was set back, it replaces later ones."""
    while points and points[-1].at >= point.at:
        points.pop()
    points.append(point)


def _line(point: EndpointPoint) -> str:
    return point.model_dump_json(exclude_defaults=True)


def columns(points: Iterable[EndpointPoint]) -> dict[str, Any]:
    """Return points as columns for plots, with a row of nulls in each gap.

    Returns:
        ``at``, ``concurrency``, ``held``, ``ready`` and ``desired`` of all versions together, and
        ``rates`` by version.
    """
    rows = list(points)
    gaps = [EndpointPoint(at=a.at + PERIOD_S) for a, b in pairwise(rows) if b.at - a.at > _GAP_S]
    rows = sorted((*rows, *gaps), key=lambda point: point.at)
    versions = sorted({version for point in rows for version in point.versions})
    return {
        "at": [round(point.at, 1) for point in rows],
        "rates": {
            str(version): [getattr(point.versions.get(version), "rate", None) for point in rows]
            for version in versions
        },
        **{name: [_total(point, name) for point in rows] for name in _TOTALS},
    }


def _total(point: EndpointPoint, name: str) -> float | None:
    found = [getattr(sample, name) for sample in point.versions.values()]
    known = [value for value in found if value is not None]
    return round(sum(known), 3) if known else None


def changes(before: EndpointStatus, after: EndpointStatus, cause: str) -> tuple[str, ...]:
    """Return what has changed between two statuses, as lines for people.

    Args:
        cause: Cause of the revision that gets the traffic now.
    """
    found = []
    if after.routed != before.routed:
        found.append(f"revision {after.routed} gets the traffic: {cause}")
    for version, now in after.versions.items():
        old = before.versions.get(version, ObservedVersion())
        if now.desired != old.desired:
            reason = f": {now.reason}" if now.reason else ""
            found.append(f"version {version}: {old.desired} to {now.desired} replicas{reason}")
        if now.message and now.message != old.message:
            found.append(f"version {version}: {now.message}")
    found += [f"version {each} has ended" for each in before.versions if each not in after.versions]
    if after.message and after.message != before.message:
        found.append(after.message)
    if after.rejected and after.rejected != before.rejected:
        found.append(f"the gateway does not listen: {after.rejected}")
    return tuple(found)
