from __future__ import annotations

from timonel.serving.console.page.history import ALL, POINTS, History, Point, quantiles
from timonel.serving.status import Code
from timonel.serving.telemetry.counts import BatchKey
from timonel.serving.telemetry.monitor import Monitor


class Rig:
    """A monitor and its history, with a clock of its own."""

    def __init__(self):
        self.now = 100.0
        self.monitor = Monitor(clock=lambda: self.now)
        self.history = History(self.monitor, "one")
        self.history.begin(self.now)

    def answer(self, model="m", seconds=0.004, code=Code.OK, api="predict"):
        observation = self.monitor.begin("REST", api, model)
        observation.model, observation.version = model, 1
        self.now += seconds
        self.monitor.end(observation, code)

    def take(self, seconds=1.0):
        self.now += seconds
        self.history.take(self.now, 1e9 + self.now)


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
    assert rig.history.latest("m") == Point()


def test_stages_are_means_and_batches_have_their_rows():
    rig = Rig()
    observation = rig.monitor.begin("GRPC", "Predict", "m")
    observation.model, observation.version = "m", 1
    rig.now += 0.002
    rig.monitor.end(observation)
    rig.monitor.batch(BatchKey("m", 1, "serving_default"), 6, 2, (0.0,), 0.001)
    rig.monitor.batch(BatchKey("m", 1, "serving_default"), 2, 0, (0.0,), 0.001)
    rig.take()
    point = rig.history.latest("m")
    assert (point.decode, point.queue, point.compute, point.encode) == (2.0, 0.0, 0.0, 0.0)
    assert point.batch == 4.0


def test_what_was_before_the_first_look_and_what_computes_nothing_is_left_out():
    rig = Rig()
    rig.answer()
    rig.history.begin(rig.now)
    rig.answer(api="", seconds=9)
    rig.take()
    assert rig.history.latest(ALL) == Point()


def test_only_what_is_new_is_told():
    rig = Rig()
    for _ in range(3):
        rig.answer()
        rig.take()
    everything = rig.history.since("m")
    assert (everything["mark"], everything["whole"]) == ("one-3", True)
    assert len(everything["at"]) == len(everything["rate"]) == len(everything["p99"]) == 3
    assert len(rig.history.since("m", "one-2")["at"]) == 1
    assert rig.history.since("m", "one-3") == {"mark": "one-3", "whole": False, "at": []}
    assert rig.history.since("unknown", "one-2")["rate"] == (0.0,)
    # Another process, one before this, or nonsense.
    for strange in ("two-2", "one-", "one-x", "one--1", "2", "one-" + "9" * 30, "\u0661-\u0661"):
        found = rig.history.since("m", strange)
        assert (len(found["at"]), found["whole"]) == (3, True)


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
    assert len(rig.history.since(ALL)["at"]) == POINTS


def test_percentiles_are_values_that_occurred():
    assert quantiles(range(1, 101)) == (50, 95, 99)
    assert quantiles([3.0]) == (3.0, 3.0, 3.0)
    assert quantiles([]) == (None, None, None)
