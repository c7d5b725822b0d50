from __future__ import annotations

from timonel.serving.batching.queue import BatchObservation
from timonel.serving.console.page.history import (
    ALL,
    POINTS,
    TrafficHistory,
    TrafficPoint,
    quantiles,
)
from timonel.serving.status import Code
from timonel.serving.telemetry.counts import BatchKey
from timonel.serving.telemetry.monitor import Monitor


class Rig:
    """A monitor and its history, with a clock of its own."""

    def __init__(self):
        self.now = 100.0
        self.monitor = Monitor(clock=lambda: self.now)
        self.history = TrafficHistory(self.monitor)
        self.history.look(self.now, 0)

    def answer(self, model="m", seconds=0.004, code=Code.OK, api="predict"):
        observation = self.monitor.begin("REST", api, model)
        observation.model, observation.version = model, 1
        self.now += seconds
        self.monitor.end(observation, code)

    def take(self, seconds=1.0):
        self.now += seconds
        self.history.look(self.now, 1e9 + self.now)


def test_rates_errors_and_percentiles_of_what_came_since_the_last_point():
    rig = Rig()
    for _ in range(3):
        rig.answer()
    rig.answer(seconds=0.1, code=Code.INVALID_ARGUMENT)
    rig.answer("other", seconds=0.001)
    rig.take(1 - 0.113)
    point = rig.history.latest("m")
    assert (point.rate, point.errors) == (4.0, 1.0)
    assert (point.p50, point.p99) == (4.0, 4.0)
    assert rig.history.latest(ALL).rate == 5.0
    rig.take()
    assert rig.history.latest("m") == TrafficPoint()


def test_stages_are_means_and_batches_have_their_rows():
    rig = Rig()
    observation = rig.monitor.begin("GRPC", "Predict", "m")
    observation.model, observation.version = "m", 1
    rig.now += 0.002
    rig.monitor.end(observation)
    for rows, padding in ((6, 2), (2, 0)):
        batch = BatchObservation((0.0,), 0.001, rows, padding, "serving_default", failed=False)
        rig.monitor.batch(BatchKey("m", 1, "serving_default"), batch)
    rig.take()
    point = rig.history.latest("m")
    assert (point.decode, point.queue, point.compute, point.encode) == (2.0, 0.0, 0.0, 0.0)
    assert point.batch == 4.0


def test_what_was_before_a_first_look_and_what_computes_nothing_is_left_out():
    rig = Rig()
    rig.answer()
    rig.take(3600)
    assert rig.history.columns(ALL)["at"] == []
    rig.answer(api="", seconds=9)
    rig.take()
    assert rig.history.latest(ALL) == TrafficPoint()


def test_several_pages_share_the_points():
    rig = Rig()
    rig.answer(seconds=0)
    rig.take(0.5)
    rig.take(0.5)
    assert (len(rig.history.columns(ALL)["at"]), rig.history.latest(ALL).rate) == (1, 1.0)


def test_points_are_columns():
    rig = Rig()
    assert rig.history.columns("m") == {"at": []}
    for _ in range(3):
        rig.answer()
        rig.take()
    everything = rig.history.columns("m")
    assert everything["at"] == sorted(everything["at"])
    assert len(everything["at"]) == len(everything["rate"]) == len(everything["p99"]) == 3
    assert rig.history.columns("unknown")["rate"] == (0.0, 0.0, 0.0)


def test_a_busy_server_is_told_by_its_last_requests_and_counted_by_all():
    rig = Rig()
    for _ in range(3000):
        rig.answer(seconds=0)
    rig.take()
    assert rig.history.latest("m").rate == 3000.0


def test_there_is_an_end_to_what_is_kept():
    rig = Rig()
    for _ in range(POINTS + 10):
        rig.take()
    assert len(rig.history.columns(ALL)["at"]) == POINTS


def test_percentiles_are_values_that_occurred():
    assert quantiles(range(1, 101)) == (50, 95, 99)
    assert quantiles([3.0]) == (3.0, 3.0, 3.0)
    assert quantiles([]) == (None, None, None)
