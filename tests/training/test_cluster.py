from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.engines.cluster import assign, encode
from timonel.engines.spec import RoleSpec
from timonel.errors import NotFoundError, SpecError
from timonel.training.cluster import Cluster, parse_cluster, read_cluster

ROLES = (RoleSpec(name="chief"), RoleSpec(name="worker", replicas=2))


def test_every_task_finds_its_place() -> None:
    addresses = {
        name: f"host{number % 2}:{number}"
        for number, name in enumerate(("chief-0", "worker-0", "worker-1"))
    }
    tasks = [
        parse_cluster(encode(assignment)) for assignment in assign(ROLES, addresses, 3).values()
    ]
    assert [task.rank for task in tasks] == [0, 1, 2]
    assert [task.is_chief for task in tasks] == [True, False, False]
    assert [task.task_id for task in tasks] == ["chief-0", "worker-0", "worker-1"]
    assert [task.neighbours for task in tasks] == [(0, 2), (0, 1), (1, 2)]
    assert {task.generation for task in tasks} == {3}
    assert tasks[2].trainers == ("host0:0", "host1:1", "host0:2")
    assert tasks[2].leader == ("chief", 0)
    assert tasks[2].tf_config() == {
        "cluster": {"chief": ["host0:0"], "worker": ["host1:1", "host0:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_only_one_of_those_that_train_leads() -> None:
    tasks = {"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1", "d:1")}
    leaders = [
        Cluster(tasks, role, index)
        for role, index in (("chief", 0), ("worker", 0), ("ps", 0), ("ps", 1), ("evaluator", 0))
    ]
    assert [task.is_chief for task in leaders] == [True, False, False, False, False]
    assert {task.size for task in leaders} == {4}


def test_an_evaluator_is_beside_the_cluster() -> None:
    value = {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}
    found = parse_cluster(json.dumps(value))
    assert found.task_id == "evaluator-0"
    assert found.trainers == ("a:1",)


def test_the_first_generation_is_the_default() -> None:
    value: dict[str, Any] = {
        "cluster": {"worker": ["a:1"]},
        "task": {"type": "worker", "index": 0},
    }
    first = parse_cluster(json.dumps(value))
    assert (first.generation, first.reason) == (1, None)
    later = parse_cluster(json.dumps({**value, "generation": 2, "reason": "worker-0 was lost"}))
    assert (later.generation, later.reason) == (2, "worker-0 was lost")


def test_without_a_chief_the_first_worker_leads() -> None:
    first = Cluster({"worker": ("a:1", "b:1")}, "worker", 0)
    assert first.is_chief
    assert first.leader == ("worker", 0)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        "{}",
        json.dumps({"cluster": {"chief": []}, "task": {"type": "chief", "index": 0}}),
        json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "worker", "index": 0}}),
    ],
)
def test_what_is_no_cluster(value: str) -> None:
    with pytest.raises(SpecError, match="TIMONEL_CLUSTER"):
        parse_cluster(value)


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "[::1]:2"], "ps": ["c.example:65000"]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}))
    return path


def test_the_task_is_the_clusters_or_the_command_lines(place: Path) -> None:
    assert read_cluster(str(place), None, None, {}).task_id == "worker-1"
    found = read_cluster(str(place), "ps", 0, {})
    assert found.task_id == "ps-0"
    assert not found.is_chief
    assert found.tasks == {role: tuple(addresses) for role, addresses in CLUSTER.items()}


def test_the_environment(place: Path) -> None:
    found = read_cluster("env", None, None, {"TF_CONFIG": place.read_text()})
    assert found.task_id == "worker-1"
    assert found.generation == 1


def test_an_evaluator_is_in_nobodys_cluster(place: Path) -> None:
    place.write_text(json.dumps({"cluster": {**CLUSTER, "evaluator": ["e:1", "e:2"]}}))
    for index in (0, 1):
        found = read_cluster(str(place), "evaluator", index, {})
        assert found.task_id == f"evaluator-{index}"
        assert "evaluator" not in found.tasks
    place.write_text(json.dumps({"cluster": {"chief": ["a:1"]}}))
    assert read_cluster(str(place), "evaluator", None, {}).task_id == "evaluator-0"


@pytest.mark.parametrize(
    ("cluster", "task", "words"),
    [
        (CLUSTER, (None, None), "which task"),
        (CLUSTER, ("worker", 2), "index of worker must be from 0 to 1, got 2"),
        (CLUSTER, ("worker", -1), "got -1"),
        (CLUSTER, ("master", 0), "got 'master'"),
        ({"ps": ["a:1"]}, ("ps", 0), "needs a chief or a worker"),
        ({"chief": ["a:1", "b:1"]}, ("chief", 0), "one chief, got 2"),
        ({"boss": ["a:1"]}, ("boss", 0), "Unknown role 'boss'"),
        ({"chief": "a:1"}, ("chief", 0), "a list of addresses"),
        ({"chief": []}, ("chief", 0), "a list of addresses"),
        ({"chief": ["a"]}, ("chief", 0), "host:port; .* has 'a' for chief"),
        ({"chief": [3]}, ("chief", 0), "has 3 for chief"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, ("chief", 0), "a:1 twice"),
        ({}, ("chief", 0), "under 'cluster'"),
        (None, ("chief", 0), "under 'cluster'"),
    ],
)
def test_invalid_clusters_are_rejected(
    place: Path, cluster: Any, task: tuple[str | None, int | None], words: str
) -> None:
    place.write_text(json.dumps({"cluster": cluster}))
    with pytest.raises(SpecError, match=words.replace("[", r"\[")):
        read_cluster(str(place), *task, {})


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ("[]", "a JSON object")])
def test_invalid_documents_are_rejected(place: Path, text: str, words: str) -> None:
    place.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_cluster(str(place), "chief", 0, {})


@pytest.mark.parametrize("place", ["nowhere.json", "env"])
def test_a_missing_cluster_is_an_error(place: str) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read_cluster(place, "chief", 0, {})


def test_worker_0_becomes_the_chief_that_parameter_servers_need() -> None:
    tasks = {"worker": ("a:1", "b:1", "c:1"), "ps": ("d:1",)}
    found = [Cluster(tasks, role, index).with_chief() for role, index in PLACES]
    assert [cluster.task_id for cluster in found] == ["chief-0", "worker-0", "worker-1", "ps-0"]
    for cluster in found:
        assert cluster.tasks == {"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}
    assert found[0].with_chief() is found[0]


PLACES = [("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0)]


def test_one_worker_cannot_be_the_chief_too() -> None:
    with pytest.raises(SpecError, match="one worker, but no chief"):
        Cluster({"worker": ("a:1",), "ps": ("d:1",)}, "ps", 0).with_chief()
