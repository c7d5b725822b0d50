"""What several processes have counted: as JSON's values and back, and added up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from timonel.serving.monitoring.exposition import Histogram
from timonel.serving.monitoring.series import RequestKey, Requests
from timonel.serving.monitoring.snapshot import Snapshot
from timonel.serving.status import Code

K = TypeVar("K")
V = TypeVar("V")


def as_fields(snapshot: Snapshot) -> list[Any]:
    """Return what a worker counts: requests, and those that were to be logged."""
    requests = [
        [[*key[:5], int(key.code)], [_histogram(each) for each in _histograms(value)]]
        for key, value in snapshot.requests.items()
    ]
    return [requests, [[*key, count] for key, count in snapshot.logged.items()]]


def from_fields(content: Sequence[Any]) -> Snapshot:
    """Return what `as_fields` was given."""
    requests, logged = content
    return Snapshot(
        requests={
            RequestKey._make((*key, Code(code))): _requests(histograms)
            for (*key, code), histograms in requests
        },
        logged={(model, code): count for model, code, count in logged},
    )


def summed(whole: Snapshot, others: Iterable[Snapshot]) -> Snapshot:
    """Return what one process and others have counted together.

    Args:
        whole: What has everything; what is not counted by requests is its.
        others: What has counted requests as well.
    """
    requests = {key: value.copy() for key, value in whole.requests.items()}
    logged = dict(whole.logged)
    for other in others:
        _add(requests, other.requests, _sum)
        _add(logged, other.logged, int.__add__)
    kept = {each.name: getattr(whole, each.name) for each in fields(whole)}
    return Snapshot(**{**kept, "requests": requests, "logged": logged})


def _add(into: dict[K, V], more: Mapping[K, V], add: Callable[[V, V], V]) -> None:
    for key, value in more.items():
        into[key] = add(into[key], value) if key in into else value


def _sum(one: Requests, other: Requests) -> Requests:
    result = one.copy()
    for mine, theirs in zip(_histograms(result), _histograms(other), strict=True):
        mine.add(theirs)
    return result


def _histograms(requests: Requests) -> tuple[Histogram, ...]:
    return requests.whole, *requests.stages, requests.run, requests.rows


def _histogram(histogram: Histogram) -> list[Any]:
    return [histogram.counts, histogram.total]


def _requests(content: Sequence[Any]) -> Requests:
    made = Requests()
    for histogram, (counts, total) in zip(_histograms(made), content, strict=True):
        histogram.counts[:] = counts
        histogram.total = total
    return made
