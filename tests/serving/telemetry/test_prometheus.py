from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from timonel.serving.telemetry.counts import MICROSECONDS, Histogram, exponential
from timonel.serving.telemetry.prometheus import counter, encode, gauge, histogram


def observed(bounds, *values):
    made = Histogram(bounds)
    for value in values:
        made.observe(value)
    return made


def test_limits_are_those_of_tensorflow_serving():
    assert len(MICROSECONDS) == 33
    assert [f"{bound:g}" for bound in MICROSECONDS[:6]] == [
        "10", "18", "32.4", "58.32", "104.976", "188.957",
    ]  # fmt: skip
    assert exponential(1, 2, 3) == (1, 2, 4)


def test_a_page_has_names_labels_and_limits_as_given():
    values = observed((1, 2.5), 0.5, 1, 2, 100)
    page = encode(
        [
            histogram(":b", "B.", ("API",), [(("predict",), values)], unit=10),
            counter(":a", "A.", ("model_name",), [(('m"\\\n untyped\n',), 2.5)]),
            counter("c_total", "C.", (), [((), 3)]),
            gauge("empty", "Nothing.", (), []),
        ]
    )
    assert page.decode() == (
        "# HELP :a A.\n"
        "# TYPE :a counter\n"
        ':a{model_name="m\\"\\\\\\n untyped\\n"} 2.5\n'
        "# HELP :b B.\n"
        "# TYPE :b histogram\n"
        ':b_bucket{API="predict",le="10"} 2.0\n'
        ':b_bucket{API="predict",le="25"} 3.0\n'
        ':b_bucket{API="predict",le="+Inf"} 4.0\n'
        ':b_count{API="predict"} 4.0\n'
        ':b_sum{API="predict"} 1035.0\n'
        "# HELP c_total C.\n"
        "# TYPE c_total counter\n"
        "c_total 3.0\n"
    )


def test_what_belongs_to_the_same_labels_is_added_up():
    small, large = observed((1, 2), 1), observed((1, 2, 3), 3, 4)
    (bucket, *_, last, count, total) = histogram("h", "", (), [((), large)], bounds=(1, 2)).samples
    assert (bucket.value, last.value, count.value, total.value) == (0, 2, 2, 7)
    doubled = histogram("h", "", (), [((), small), ((), small)]).samples
    assert [sample.value for sample in doubled] == [2, 2, 2, 2, 2]
    summed = counter("c", "", ("a",), [(("x",), 1), (("b",), 2), (("x",), 3)]).samples
    assert [(sample.labels["a"], sample.value) for sample in summed] == [("b", 2), ("x", 4)]


@given(
    st.dictionaries(st.text(max_size=5), st.floats(0, 1e12), max_size=3),
    st.lists(st.floats(0, 1e9), max_size=20),
)
def test_prometheus_reads_what_was_written(values, seen):
    families = [
        gauge(":c", "C.", ("who",), (((who,), value) for who, value in values.items())),
        histogram(":h", "H.", (), [((), observed(MICROSECONDS, *seen))]),
    ]
    page = encode(families)
    # Prometheus ends lines at newlines only, its Python parser at what str.splitlines knows too.
    read = {f.name: f for f in text_string_to_metric_families(page.decode())}
    found = {s.labels["who"]: s.value for s in read[":c"].samples} if values else {}
    assert found == values
    samples = read[":h"].samples
    assert [s.value for s in samples if s.name == ":h_count"] == [len(seen)]
    buckets = [s.value for s in samples if s.name == ":h_bucket"]
    assert buckets == sorted(buckets)
    assert len(buckets) == 34
