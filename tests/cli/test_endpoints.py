"""``timonel endpoints`` on the command line."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Timonel
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.spec import EndpointSpec
from timonel.serving.server_records import ServerRecord, write_record
from timonel.storage import find_workspace
from timonel.storage.document_store import FolderDocuments


@pytest.fixture
def trace(here: Path) -> Path:
    rows = [(0, 1), (60, 40), (240, 1), (600, 1)]
    path = here / "trace.csv"
    path.write_text("time,concurrency\n" + "".join(f"{at},{load}\n" for at, load in rows))
    return path


def test_a_trace_is_replayed(timonel: Timonel, trace: Path) -> None:
    (trace.parent / "policy.yaml").write_text("target: 1\nmax_replicas: 30\n")
    outcome = timonel(
        "endpoints", "simulate", trace, "--policy", "policy.yaml", "--out", "plot.html"
    )
    assert outcome.exit_code == 0, outcome
    lines = outcome.out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines[:3])
    assert facts["duration"].strip() == "16m 00s"
    assert float(facts["replica-hours"]) > 1
    assert "at most 30" in outcome.out
    assert "panic: concurrency" in outcome.out
    assert lines[-1] == "plot.html shows it"
    page = Path("plot.html").read_text()
    assert "trace.csv with policy.yaml" in page
    assert "time over target" in page


def test_json(timonel: Timonel, trace: Path) -> None:
    outcome = timonel("endpoints", "simulate", trace, "--startup", "5s", "--json")
    found = json.loads(outcome.out)
    assert found["duration_s"] == 960
    assert found["cold_starts"] == 0
    assert set(found) == {
        "duration_s", "requests", "unserved", "replica_hours", "max_replicas", "mean_replicas",
        "cold_starts", "over_target_s", "latency_p50_s", "latency_p95_s", "latency_p99_s",
        "panics", "decisions",
    }  # fmt: skip


def test_a_trace_without_requests_has_no_latency(timonel: Timonel, here: Path) -> None:
    (here / "idle.csv").write_text("time,rps\n0,0\n500,0\n")
    found = json.loads(timonel("endpoints", "simulate", "idle.csv", "--json").out)
    assert found["latency_p99_s"] is None
    assert [each["replicas"] for each in found["decisions"]] == [0]
    assert found["decisions"][0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("none.csv",), 2, "the trace none.csv does not exist"),
        (("spike", "--policy", "none.yaml"), 2, "cannot read the policy"),
        (("spike", "--startup", "long"), 2, "expected a duration"),
        (("spike", "--service-time", "0"), 2, "the service time must be at least"),
        (("spike", "--out", "plot.pdf"), 2, "end the name with .svg or .html"),
    ],
)
def test_wrong_arguments(
    timonel: Timonel, here: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    outcome = timonel("endpoints", "simulate", *arguments)
    assert outcome.exit_code == code
    assert words in outcome.error_line
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ('"port": 8501', '"port": "no"', "000001.json is damaged"),
        ('"format": 1', '"format": 99', "000001.json"),
    ],
)
def test_an_unreadable_endpoint_is_listed_with_its_error(
    timonel: Timonel, here: Path, before: str, after: str, error: str
) -> None:
    workspace = find_workspace(here / ".timonel", create=True)
    for name in ("digits", "iris"):
        spec = EndpointSpec(name=name, model=name, port=8501, traffic={"percent": {1: 100}})
        EndpointFolder(FolderDocuments(workspace.endpoints), name).add(spec, "deploy", after=0)
    path = workspace.endpoints / "digits/revisions/000001.json"
    path.write_text(path.read_text().replace(before, after))
    digits, iris = json.loads(timonel("endpoints", "--json").out)["endpoints"]
    assert digits.keys() == {"name", "state", "message"}
    assert digits["state"] == "unreadable"
    assert error in digits["message"]
    assert (iris["state"], iris["revision"]) == ("down", 1)
    outcome = timonel("endpoints", "list")
    assert outcome.exit_code == 0
    _, first, second = outcome.out.splitlines()
    assert first.split()[:2] == ["digits", "unreadable"]
    assert second.split()[:2] == ["iris", "down"]


def test_servers_stop_refuses_replicas(timonel: Timonel, here: Path) -> None:
    workspace = find_workspace(here / ".timonel", create=True)
    started = psutil.Process().create_time()
    record = ServerRecord(
        os.getpid(), started, ("digits",), "http://127.0.0.1:1", None, started,
        replica="digits-v1-2-1",
    )  # fmt: skip
    write_record(workspace.servers, record)
    for server in ("digits", os.getpid()):
        outcome = timonel("servers", "stop", server)
        assert outcome.exit_code == 2
        assert "replicas of the endpoint digits" in outcome.error_line
        assert "timonel endpoints scale digits" in outcome.error_line
    (listed,) = json.loads(timonel("servers", "--json").out)["servers"]
    assert listed["replica"] == "digits-v1-2-1"
    assert "digits-v1-2-1" in timonel("servers").out


def test_delete_asks_first(timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = find_workspace(here / ".timonel", create=True)
    spec = EndpointSpec(name="digits", model="digits", port=8501, traffic={"percent": {1: 100}})
    folder = EndpointFolder(FolderDocuments(workspace.endpoints), "digits")
    folder.add(spec, "deploy", after=0)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    outcome = timonel("endpoints", "delete", "digits")
    assert outcome.exit_code == 2
    assert "use --yes" in outcome.error_line
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: False)
    outcome = timonel("endpoints", "delete", "digits")
    assert (outcome.exit_code, outcome.out) == (1, "kept all\n")
    assert "endpoint  digits" in outcome.err
    assert not folder.is_deleted


def test_simulate_with_the_policy_of_an_endpoint(timonel: Timonel, here: Path) -> None:
    workspace = find_workspace(here / ".timonel", create=True)
    spec = EndpointSpec(
        name="digits", model="digits", port=8501, traffic={"percent": {1: 100}},
        scaling={"target": 2, "max_replicas": 4},
    )  # fmt: skip
    EndpointFolder(FolderDocuments(workspace.endpoints), "digits").add(spec, "deploy", after=0)
    found = json.loads(
        timonel("endpoints", "simulate", "spike", "--endpoint", "digits", "--json").out
    )
    assert found["max_replicas"] == 4
    outcome = timonel("endpoints", "simulate", "spike", "--endpoint", "nope")
    assert "no such endpoint: nope" in outcome.error_line
    outcome = timonel("endpoints", "simulate", "spike", "--endpoint", "a", "--policy", "b")
    assert "give either --policy or --endpoint" in outcome.error_line
