"""Counts of versions from Envoy's statistics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from timonel.endpoints.gateway.parts import PROTOCOLS, cluster_name
from timonel.endpoints.gateway.process import Admin
from timonel.endpoints.rollouts.counts import Counts
from timonel.serving.status import HTTP_STATUS, Code

_EXHAUSTED = HTTP_STATUS[Code.RESOURCE_EXHAUSTED]
"""An error although it is 4xx: the version lacks memory, or its response is too large."""
_GRPC_ERRORS = [c for c, status in HTTP_STATUS.items() if status >= 500 or status == _EXHAUSTED]
_GRPC_REJECTIONS = [code for code in HTTP_STATUS if code not in {Code.OK, *_GRPC_ERRORS}]
_NAMES = rf"upstream_rq_(completed|4xx|5xx|{_EXHAUSTED})|grpc\.\d+|upstream_rq_time"


class CountReader:
    """Converts the totals of Envoy processes into counts since the previous reading."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Counts]] | None = None
        self.is_blind = False
        """Whether no process has answered the last reading."""

    def read(self, admins: Mapping[str, Admin], services: Iterable[str]) -> dict[str, Counts]:
        """Return the counts of services since the previous reading; none at the first.

        Args:
            admins: Admin interfaces by process; a restarted process has another key.
        """
        names = sorted(services)
        totals: dict[str, dict[str, Counts]] = {}
        for process, admin in admins.items():
            found = _totals(admin, names)
            if found is not None:
                totals[process] = found
        self.is_blind = bool(admins) and not totals
        before, self._before = self._before, {**(self._before or {}), **totals}
        changes = {service: Counts() for service in names}
        for process, now in totals.items():
            # Counts of a process before the first reading are ignored.
            then = now if before is None else before.get(process, {})
            for service in names:
                changes[service] += now[service] - then.get(service, Counts())
        return changes

    def forget(self) -> None:
        """Make the next reading the first."""
        self._before = None


def _totals(admin: Admin, services: Collection[str]) -> dict[str, Counts] | None:
    names = [cluster_name(service, each) for service in services for each in PROTOCOLS]
    pattern = rf"^cluster\.({'|'.join(map(re.escape, names))})\.({_NAMES})$"
    counters, histograms = admin.stats(pattern), admin.histograms(pattern)
    if counters is None or histograms is None:
        return None
    return {service: totals(service, counters, histograms) for service in services}


def totals(
    service: str, counters: Mapping[str, int], histograms: Mapping[str, Mapping[int, int]]
) -> Counts:
    """Return the counts of a service, over REST and gRPC.

    Args:
        counters: Envoy's counters by name.
        histograms: Its histograms by name.
    """
    rest, grpc = (f"cluster.{cluster_name(service, each)}." for each in PROTOCOLS)

    def count(*names: str) -> int:
        return sum(int(counters.get(name, 0)) for name in names)

    # Envoy's own answers, such as 503, are counted both as HTTP and as gRPC.
    grpc_errors = count(*(f"{grpc}grpc.{int(code)}" for code in _GRPC_ERRORS))
    grpc_rejections = count(*(f"{grpc}grpc.{int(code)}" for code in _GRPC_REJECTIONS))
    exhausted = count(f"{rest}upstream_rq_{_EXHAUSTED}")
    found = Counts(
        requests=count(f"{rest}upstream_rq_completed", f"{grpc}upstream_rq_completed"),
        errors=count(f"{rest}upstream_rq_5xx")
        + exhausted
        + max(count(f"{grpc}upstream_rq_5xx"), grpc_errors),
        rejections=count(f"{rest}upstream_rq_4xx")
        - exhausted
        + max(count(f"{grpc}upstream_rq_4xx"), grpc_rejections),
    )
    for prefix in (rest, grpc):
        found += Counts(latencies=histograms.get(f"{prefix}upstream_rq_time", {}))
    return found
