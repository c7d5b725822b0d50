"""What workers have counted, told as JSON and added up; and what they are told."""

from __future__ import annotations

import json

from timonel.serving.config import ModelSettings
from timonel.serving.monitoring.monitor import Monitor, page_of, traffic_of
from timonel.serving.monitoring.series import BatchKey
from timonel.serving.monitoring.sums import as_fields, from_fields, summed
from timonel.serving.status import Code
from timonel.serving.versions import State, VersionStatus
from timonel.serving.workers.news import ModelNews, News, Offer, read_news
from timonel.serving.workers.traffic import read_recent, recent_fields


def counted(*models):
    """Return a monitor that has counted a request to each of some models."""
    monitor = Monitor(clock=iter(range(1000)).__next__)
    for name in models:
        observation = monitor.begin("REST", "predict", name)
        observation.model, observation.version, observation.rows = name, 1, 3
        monitor.end(observation, Code.OK if name == "a" else Code.INTERNAL)
        monitor.logged(name, Code.OK)
    return monitor


def through_json(snapshot):
    return from_fields(json.loads(json.dumps(as_fields(snapshot))))


def test_counts_survive_the_way():
    snapshot = counted("a", "a", "b").counted()
    assert page_of(through_json(snapshot)) == page_of(snapshot)


def test_the_sum_is_what_one_process_would_have_counted():
    one, two = counted("a", "b"), counted("a", "a")
    both = summed(one.counted(), [through_json(two.counted())])
    assert page_of(both) == page_of(counted("a", "b", "a", "a").counted())
    # What was added up is as it was.
    assert page_of(one.counted()) == page_of(counted("a", "b").counted())


def test_batches_are_those_of_the_leader():
    leader = Monitor()
    leader.batch(BatchKey("a", 1, "s"), 4, 0, (0.0,), 0.1)
    both = summed(leader.counted(), [counted("a").counted()])
    traffic = traffic_of(both.requests.items(), both.batches.items())
    assert traffic["a"] == traffic[""] == (1, 0, 1, 4)


def test_the_last_requests_are_told_once():
    recent = counted("a", "b").recent()
    fields = json.loads(json.dumps(recent_fields(recent, 0.0)))
    assert read_recent(fields) == recent
    assert recent_fields(recent, recent[-1].ended) == []


def test_news_survive_the_way():
    status = VersionStatus(2, State.END, Code.UNAVAILABLE, "gone")
    news = News(
        7,
        (ModelSettings(name="m", base_path="/m", labels={"stable": 1}),),
        {"m": {"stable": 1}},
        {"m": ModelNews((status,), (Offer(3, 1, ("cat", "dog")),)), "left out": ModelNews((), ())},
    )
    assert read_news(json.loads(json.dumps(news.as_fields()))) == news
