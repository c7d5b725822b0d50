from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from timonel.serving.monitoring.exposition import (
    MICROSECONDS,
    Family,
    Histogram,
    Sample,
    exponential,
    expose,
    labels,
    metric_name,
    summed,
)


def test_limits_are_those_of_tensorflow_serving():
    assert len(MICROSECONDS) == 33
    assert [f"{bound:g}" for bound in MICROSECONDS[:6]] == [
        "10", "18", "32.4", "58.32", "104.976", "188.957",
    ]  # fmt: skip
    assert exponential(1, 2, 3) == (1, 2, 4)


def test_names_become_what_prometheus_accepts():
    assert metric_name("/tensorflow/serving/request_count") == ":tensorflow:serving:request_count"
    assert metric_name("timonel_load_seconds") == "timonel_load_seconds"
    assert metric_name("1/a-b") == "_1:a:b"


def test_a_page_has_type_lines_and_no_help():
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 100):
        histogram.observe(value)
    page = expose(
        [
            Family("/b", "histogram", [Sample(labels(API="predict"), histogram)], unit=10),
            Family("/a", "counter", [Sample((), 3), Sample(labels(model_name='m"\\\n'), 2.5)]),
            Family("/empty", "gauge"),
        ]
    )
    assert page.decode() == (
        "# TYPE :a counter\n"
        ":a{} 3\n"
        ':a{model_name="m\\"\\\\\\n"} 2.5\n'
        "# TYPE :b histogram\n"
        ':b_bucket{API="predict",le="10"} 2\n'
        ':b_bucket{API="predict",le="25"} 3\n'
        ':b_bucket{API="predict",le="+Inf"} 4\n'
        ':b_sum{API="predict"} 1035\n'
        ':b_count{API="predict"} 4\n'
    )


def test_what_belongs_to_the_same_labels_is_added_up():
    small, large = Histogram((1, 2)), Histogram((1, 2, 3))
    small.observe(1)
    large.observe(3)
    large.observe(4)
    (sample,) = summed([((), large)], bounds=(1, 2))
    assert sample.value.counts == [0, 0, 2]
    (sample,) = summed([((), small), ((), small.copy())])
    assert (sample.value.counts, sample.value.total) == ([2, 0, 0], 2)
    assert summed([((), 1), (labels(a="b"), 2), ((), 3)]) == (
        Sample((), 4),
        Sample(labels(a="b"), 2),
    )


@given(
    st.dictionaries(st.text(max_size=5), st.floats(0, 1e12), max_size=3),
    st.lists(st.floats(0, 1e9), max_size=20),
)
def test_prometheus_reads_what_was_written(values, observed):
    histogram = Histogram(MICROSECONDS)
    for value in observed:
        histogram.observe(value)
    families = [
        Family("/c", "gauge", [Sample(labels(who=w), v) for w, v in values.items()]),
        Family("/h", "histogram", [Sample((), histogram)]),
    ]
    # Prometheus ends lines at newlines only, its Python parser at what str.splitlines knows too.
    read = {f.name: f for f in text_string_to_metric_families(expose(families).decode())}
    found = {s.labels["who"]: s.value for s in read[":c"].samples} if values else {}
    assert found == values
    samples = read[":h"].samples
    assert [s.value for s in samples if s.name == ":h_count"] == [len(observed)]
    buckets = [s.value for s in samples if s.name == ":h_bucket"]
    assert buckets == sorted(buckets)
    assert len(buckets) == 34
