"""``timonel endpoints rollout`` on the command line, with the documents of a rollout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from tests.endpoints.test_folder import spec
from timonel.endpoints.folder import EndpointFolder, EndpointStatus
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import (
    Command,
    Phase,
    Point,
    RolloutFolder,
    RolloutState,
    new_rollout,
)
from timonel.endpoints.rollouts.guards import check, parse_guards
from timonel.storage import find_workspace
from timonel.storage.document_store import FolderDocuments

GOOD = Counts(requests=900, errors=1, latencies={1: 500, 20: 400})
SLOW = Counts(
    requests=300,
    errors=2,
    rejections=1,
    latencies={20: 200, 300: 100},
    pairs=60,
    agreements=45,
)


def rollout_root(rollout: RolloutFolder) -> Path:
    return Path(rollout.documents.place("digits/rollouts"))


@pytest.fixture
def endpoint(here: Path) -> EndpointFolder:
    workspace = find_workspace(here / ".timonel")
    workspace.endpoints.mkdir(exist_ok=True)
    folder = EndpointFolder(FolderDocuments(workspace.endpoints), "digits")
    folder.add(spec(1), "deploy digits/1", after=0)
    return folder


@pytest.fixture
def rollout(endpoint: EndpointFolder) -> RolloutFolder:
    """A rollout that was rolled back at its second step."""
    documents = RolloutFolder(endpoint.documents, "digits", 1)
    fields = {"steps": (10, 50, 100), "guards": ("error_rate<1%,p90<50ms,agreement>98%",)}
    documents.create(new_rollout(endpoint.revision(), 2, 1000.0, fields))
    for at, percent in ((1060, 10), (1120, 10), (1180, 50)):
        point = Point(at=at, percent=percent, counts={1: GOOD, 2: SLOW})
        documents.add_point(point)
    guards = parse_guards("error_rate<1%,p90<50ms,agreement>98%")
    state = RolloutState(
        phase=Phase.ROLLED_BACK,
        message="version 2 was rolled back: p90 is 307ms of 300 requests (limit 50ms)",
        step=1,
        counts={1: GOOD, 2: SLOW},
        checks=tuple(check(guard, SLOW, GOOD, 0.05, 0.05) for guard in guards),
        ended_at=1180.0,
    )
    documents.write_state(state)
    return documents


def test_show(timonel: Timonel, rollout: RolloutFolder) -> None:
    lines = timonel("endpoints", "rollout", "digits").out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines[:4])
    assert facts["rollout"].strip() == "1, from version 1 to 2"
    assert facts["state"].strip() == "rolled back"
    assert "p90 is 307ms" in facts["reason"]
    text = "\n".join(lines)
    assert "p90<50ms" in text
    assert re.search(r"agreement>98% +rejected +75% \(\S+% to \S+%\) +98% +60", text)
    assert "rejected" in text


def test_json(timonel: Timonel, rollout: RolloutFolder) -> None:
    found = json.loads(timonel("endpoints", "rollout", "digits", "--json").out)
    assert set(found) == {
        "rollout", "to", "base", "state", "message", "command", "percent", "traffic", "steps",
        "interval_s", "guards", "versions", "started_at", "ended_at",
    }  # fmt: skip
    assert found["state"] == "rolled_back"
    assert found["versions"]["2"] == {
        "requests": 300, "errors": 2, "rejections": 1, "pairs": 60, "agreements": 45,
        "p50_ms": 20.75, "p90_ms": 307.0, "p99_ms": 309.7,
    }  # fmt: skip
    assert found["guards"][1] == {
        "guard": "p90<50ms", "verdict": "rejected", "value": "307ms", "limit": "50ms",
        "requests": 300,
    }  # fmt: skip


def test_a_report_is_a_page(timonel: Timonel, rollout: RolloutFolder, here: Path) -> None:
    outcome = timonel("endpoints", "rollout", "digits", "--report", "page.html")
    assert outcome.out.splitlines()[-1] == "page.html shows it"
    page = (here / "page.html").read_text()
    assert "digits: rollout 1 to version 2" in page
    assert "p90&lt;50ms" in page
    assert "agreement&gt;98%" in page
    assert page.count("data:image/svg+xml") == 1


def test_a_rollout_without_requests_has_a_report_too(
    timonel: Timonel, endpoint: EndpointFolder, here: Path
) -> None:
    documents = RolloutFolder(endpoint.documents, "digits", 1)
    documents.create(new_rollout(endpoint.revision(), 2, 1000.0, {}))
    outcome = timonel("endpoints", "rollout", "digits", "--report", "page.html")
    assert outcome.exit_code == 0
    assert "it begins" in outcome.out
    assert "No requests were counted." in (here / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "2", "--pause"), "give one of --to, --pause"),
        (("--to", "2", "--steps", "5;10"), "expected percentages, got '5;10'"),
        (("--number", "7"), "digits has no rollout 7: it has 1 to 1"),
        (("--pause",), "digits has no rollout in progress"),
        (("--report", "page.pdf"), "a report is an HTML page"),
        (("--to", "2", "--guard", "p99<fast"), "invalid guards of a rollout: not a guard"),
        (("--to", "2", "--alpha", "0.9"), "invalid alpha of a rollout"),
    ],
)
def test_wrong_arguments(
    timonel: Timonel, rollout: RolloutFolder, arguments: tuple[str, ...], words: str
) -> None:
    outcome = timonel("endpoints", "rollout", "digits", *arguments)
    assert outcome.exit_code == 2
    assert words in outcome.error_line
    assert sorted(path.name for path in rollout_root(rollout).iterdir()) == [
        "0001.json", "0001.jsonl", "0001.state.json",
    ]  # fmt: skip


def test_a_damaged_state_is_one_line(timonel: Timonel, rollout: RolloutFolder) -> None:
    (rollout_root(rollout) / "0001.state.json").write_text("{")
    outcome = timonel("endpoints", "rollout", "digits")
    assert outcome.exit_code == 3
    assert "is not valid JSON" in outcome.error_line


def test_a_truncated_history_is_readable(rollout: RolloutFolder) -> None:
    path = rollout_root(rollout) / "0001.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    assert len(rollout.points()) == 2


def test_a_command_and_the_routed_traffic_are_shown(
    timonel: Timonel, endpoint: EndpointFolder
) -> None:
    documents = RolloutFolder(endpoint.documents, "digits", 1)
    documents.create(new_rollout(endpoint.revision(), 2, 1000.0, {}))
    documents.write_state(RolloutState(phase=Phase.PAUSED, percent=50, commanded_at=1001.0))
    documents.command(Command.RESUME, 1002.0)
    endpoint.write_status(EndpointStatus(routed=1))
    lines = timonel("endpoints", "rollout", "digits").out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    assert facts["state"].strip() == "paused"
    assert facts["command"].strip() == "resume, not carried out yet"
    assert facts["traffic"].strip() == "1=100"
    found = json.loads(timonel("endpoints", "rollout", "digits", "--json").out)
    assert (found["state"], found["command"], found["traffic"]) == ("paused", "resume", {"1": 100})
