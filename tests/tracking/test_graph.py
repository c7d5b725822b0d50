from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from timonel.tracking import Artifact, RunRecord
from timonel.tracking.graph import build_graph
from timonel.tracking.records import RunHeader, fold

artifacts = st.builds(
    Artifact,
    st.just("dataset"),
    st.sampled_from(["/a", "/b", "s3://c"]),
    st.sampled_from([None, "sha256:1", "sha256:2", "sha256:3"]),
)
few = st.lists(artifacts, max_size=3)


def record(number: int, inputs: list[Artifact], outputs: list[Artifact]) -> RunRecord:
    header = RunHeader(
        id=f"run-{number}", run_kind="train", created_at=number, inputs=tuple(inputs)
    )
    events = [
        {"t": number + 0.5, "type": "output", "artifact": artifact.model_dump()}
        for artifact in outputs
    ]
    return fold(header, Path("/runs"), events)


@given(st.lists(st.tuples(few, few), max_size=6))
def test_any_records_make_a_graph_whose_parts_hang_together(
    runs: list[tuple[list[Artifact], list[Artifact]]],
) -> None:
    records = [record(number, *run) for number, run in enumerate(runs)]
    graph = build_graph(records)
    assert build_graph(reversed(records)) == graph
    assert {node.record.id for node in graph.runs} == {record.id for record in records}
    assert all(start in graph.nodes and end in graph.nodes for start, end in graph.edges)
    assert {a.digest for r in records for a in (*r.inputs, *r.outputs) if a.digest} == {
        node.key for node in graph.artifacts if node.artifact.digest
    }
    for key in graph.nodes:
        part = graph.around(key)
        assert part.focus == key
        assert key in part.nodes
        assert set(part.edges) <= set(graph.edges)
        # Cycles (a run that writes what it read) must not hang or lose the way back.
        assert set(graph.around(key, "upstream").nodes) <= set(part.nodes)


def test_a_later_description_keeps_what_an_earlier_one_said() -> None:
    graph = build_graph(
        [
            record(1, [], [Artifact("dataset", "/a", "sha256:1", "digits", {"records": 3})]),
            record(2, [Artifact("dataset", "/b", "sha256:1", metadata={"split": "train"})], []),
        ]
    )
    (node,) = graph.artifacts
    assert node.uris == ("/b", "/a")
    assert node.artifact.name == "digits"
    assert node.artifact.metadata == {"records": 3, "split": "train"}
