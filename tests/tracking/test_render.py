from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from timonel.tracking import (
    Artifact,
    LineageGraph,
    as_json,
    as_lines,
    as_rich,
)
from timonel.tracking.graph import build_graph
from timonel.tracking.records import RunHeader, fold

BASE = Path("/home/me")


def made(number: int, kind: str, inputs: list[Artifact], outputs: list[Artifact]) -> object:
    header = RunHeader(
        id=f"{kind}-{number}", run_kind=kind, created_at=number, inputs=tuple(inputs)
    )
    end = {"t": number + 1, "type": "finish", "status": "succeeded"}
    events = [{"t": number, "type": "output", "artifact": a.model_dump()} for a in outputs]
    return fold(header, Path("/runs"), [*events, end])


@pytest.fixture
def graph() -> LineageGraph:
    raw = Artifact("files", BASE / 'raw "[b]"', "sha256:1111")
    data = Artifact("dataset", BASE / "data", "sha256:2222", "digits")
    export = Artifact("savedmodel", "/job/export", "sha256:3333")
    whole = build_graph(
        [
            made(1, "convert", [raw], [data]),
            made(2, "train", [data, Artifact("source", BASE / "train.py")], [export]),
            made(3, "export", [export, data], [Artifact("model", "/models/digits/1")]),
        ]
    )
    states = {"dataset": "changed", "source": "missing"}
    return whole.around("sha256:3333").observed(lambda node: states.get(node.artifact.type))


def test_lines(graph: LineageGraph) -> None:
    lines = as_lines(graph, relative_to=BASE)
    assert [re.sub(r"  succeeded, 1970-01-0\d \d\d:\d\d", "", line) for line in lines] == [
        "savedmodel /job/export  3333",
        "├── train run train-2",
        "│   ├── dataset data  2222  (changed since)",
        "│   │   └── convert run convert-1",
        '│   │       └── files raw "[b]"  1111',
        "│   └── source train.py  (missing)",
        "└── used by",
        "    └── export run export-3",
        "        └── model /models/digits/1",
    ]


def test_what_is_reached_twice_is_drawn_once() -> None:
    data = Artifact("dataset", "/data", "sha256:2")
    export = Artifact("savedmodel", "/export", "sha256:3")
    diamond = build_graph(
        [
            made(1, "convert", [], [data]),
            made(2, "train", [data], [export]),
            made(3, "export", [export, data], []),
        ]
    ).around("run:export-3")
    lines = as_lines(diamond)
    assert sum("convert run" in line for line in lines) == 1
    assert lines[-1].endswith("dataset /data  2 (see above)")


def test_rich_reads_no_markup_in_names(graph: LineageGraph) -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(as_rich(graph, relative_to=BASE))
    shown = capture.get()
    for line in as_lines(graph, relative_to=BASE):
        assert line.lstrip("│├└─ ") in shown


def test_json_can_be_written_and_names_every_node(graph: LineageGraph) -> None:
    value = json.loads(json.dumps(as_json(graph)))
    keys = {node["key"] for node in value["nodes"]}
    assert keys == set(graph.nodes)
    assert {(edge["from"], edge["to"]) for edge in value["edges"]} == set(graph.edges)
    (data,) = [node for node in value["nodes"] if node.get("type") == "dataset"]
    assert data["state"] == "changed"
    assert data["uris"] == [str(BASE / "data")]
