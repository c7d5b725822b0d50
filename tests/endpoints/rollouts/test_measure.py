"""Counts from Envoy's statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timonel.endpoints.gateway.process import Admin
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.measure import CountReader, totals
from timonel.serving.status import HTTP_STATUS, Code

A = "digits-v1"


class FakeAdmin(Admin):
    """Answers with totals, or not at all."""

    def __init__(self) -> None:
        super().__init__(Path("unused"))
        object.__setattr__(self, "requests", 0)

    def set(self, requests: int | None) -> None:
        object.__setattr__(self, "requests", requests)

    def stats(self, pattern: str) -> dict[str, Any] | None:
        count: int | None = self.requests  # type: ignore[attr-defined]
        return None if count is None else {f"cluster.{A}-http.upstream_rq_completed": count}

    def histograms(self, pattern: str) -> dict[str, dict[int, int]] | None:
        count: int | None = self.requests  # type: ignore[attr-defined]
        return None if count is None else {f"cluster.{A}-http.upstream_rq_time": {3: count}}


def read(reader: CountReader, **admins: Admin) -> int:
    return reader.read(admins, [A])[A].requests


def test_totals_of_rest_and_grpc_are_added() -> None:
    # The two 503 are among those with the gRPC code 13 or 14.
    counters = {
        f"cluster.{A}-http.upstream_rq_completed": 100,
        f"cluster.{A}-http.upstream_rq_5xx": 3,
        f"cluster.{A}-http.upstream_rq_4xx": 2,
        f"cluster.{A}-grpc.upstream_rq_completed": 50,
        f"cluster.{A}-grpc.upstream_rq_5xx": 2,
        f"cluster.{A}-grpc.grpc.0": 40,
        f"cluster.{A}-grpc.grpc.3": 4,
        f"cluster.{A}-grpc.grpc.13": 6,
        "cluster.digits-v10-http.upstream_rq_completed": 9,
    }
    histograms = {
        f"cluster.{A}-http.upstream_rq_time": {1: 60, 20: 40},
        f"cluster.{A}-grpc.upstream_rq_time": {1: 50},
    }
    assert totals(A, counters, histograms) == Counts(
        requests=150, errors=9, rejections=6, latencies={1: 110, 20: 40}
    )


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_a_failure_counts_the_same_over_both_protocols(code: Code) -> None:
    status, rest, grpc = HTTP_STATUS[code], f"cluster.{A}-http", f"cluster.{A}-grpc"
    counters = {f"{rest}.upstream_rq_{status // 100}xx": 3, f"{rest}.upstream_rq_{status}": 3}
    over_rest = totals(A, counters, {})
    assert over_rest == totals(A, {f"{grpc}.grpc.{int(code)}": 3}, {})
    is_error = status >= 500 or code is Code.RESOURCE_EXHAUSTED
    assert (over_rest.errors, over_rest.rejections) == ((3, 0) if is_error else (0, 3))


def test_the_first_reading_counts_nothing() -> None:
    reader, admin = CountReader(), FakeAdmin()
    admin.set(1000)
    assert read(reader, one=admin) == 0
    admin.set(1010)
    assert reader.read({"one": admin}, [A])[A] == Counts(requests=10, latencies={3: 10})


def test_a_restarted_envoy_counts_from_zero() -> None:
    reader, admin = CountReader(), FakeAdmin()
    admin.set(1000)
    read(reader, one=admin)
    admin.set(7)
    assert read(reader, two=admin) == 7
    admin.set(9)
    assert read(reader, two=admin) == 2


def test_an_envoy_that_does_not_answer_loses_no_request() -> None:
    reader, admin = CountReader(), FakeAdmin()
    admin.set(1000)
    read(reader, one=admin)
    admin.set(None)
    assert read(reader, one=admin) == 0
    assert reader.is_blind
    admin.set(1005)
    assert read(reader, one=admin) == 5
    assert not reader.is_blind


def test_two_processes_are_added() -> None:
    reader, first, second = CountReader(), FakeAdmin(), FakeAdmin()
    read(reader, one=first, two=second)
    first.set(3)
    second.set(4)
    assert read(reader, one=first, two=second) == 7
