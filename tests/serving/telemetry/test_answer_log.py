"""Answers to compared requests: which are kept, for how long, and how they are read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.waiting import until
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.status import Code
from timonel.serving.telemetry.answer_log import AnswerLog
from timonel.serving.telemetry.answers import summarize

SMALL = {"y": np.array([1.0, 2.0])}
LARGE = {"y": np.zeros((200_000, 4), np.int64)}


def observed(secret="a", *outputs):
    observation = Observation("REST", "predict", "m", 0.0, Correlation(comparison=secret))
    observation.outputs = list(outputs)
    return observation


def read(log, query=b""):
    page = json.loads(log.since(query))
    return page["next"], page["answers"]


def test_answers_are_read_from_a_number_on():
    log = AnswerLog()
    assert read(log) == (0, [])
    log.record(observed("a", SMALL), Code.OK)
    log.record(observed("b", SMALL), Code.OK)
    until(lambda: read(log)[0] == 2)
    assert read(log) == (2, [list(summarize(each, [SMALL])) for each in "ab"])
    assert read(log, b"since=1") == (2, [list(summarize("b", [SMALL]))])
    assert read(log, b"since=2") == (2, [])
    assert read(log, b"since=77") == (2, [])  # of an earlier process
    assert read(log, b"since=x")[0] == 2


def test_old_answers_are_forgotten():
    log = AnswerLog()
    for number in range(5000):
        log.record(observed(str(number)), Code.INTERNAL)
    count, answers = read(log)
    assert (count, len(answers)) == (5000, 4096)
    assert answers[-1] == list(summarize("4999", None))
    assert len(read(log, b"since=4990")[1]) == 10


@pytest.mark.parametrize(
    ("code", "is_kept"),
    [
        (Code.INVALID_ARGUMENT, True),
        (Code.INTERNAL, True),
        (Code.UNAVAILABLE, False),
        (Code.CANCELLED, False),
        (Code.RESOURCE_EXHAUSTED, False),
        (Code.DEADLINE_EXCEEDED, False),
        (Code.OK, False),  # no computation, such as a request of metadata
    ],
)
def test_some_failures_are_answers(code, is_kept):
    log = AnswerLog()
    log.record(observed(), code)
    assert bool(read(log)[1]) is is_kept


def test_answers_are_copied_for_the_thread_that_summarizes_them():
    log = AnswerLog()
    changed = {"y": LARGE["y"].copy()}
    log.record(observed("a", changed), Code.OK)
    changed["y"][:] = 7  # the memory is used again
    until(lambda: read(log)[0] == 1)
    assert read(log)[1] == [list(summarize("a", [LARGE]))]


def test_too_many_answers_are_dropped():
    log = AnswerLog()
    for number in range(60):
        log.record(observed(str(number), *[LARGE] * 4), Code.OK)
    log.record(observed("failed"), Code.INTERNAL)
    until(lambda: not log._queued_bytes)
    assert 2 <= read(log)[0] < 61
    assert list(summarize("failed", None)) in read(log)[1]


def test_odd_outputs_do_not_fail_requests(caplog):
    log = AnswerLog()
    odd = np.zeros(1, [("a", "f4"), ("b", "f4")])
    log.record(observed("a", {"y": odd}), Code.OK)
    until(lambda: not log._queued_bytes)
    assert read(log) == (0, [])
    assert "cannot summarize an answer" in caplog.text
