from __future__ import annotations

import json

import pytest

from timonel.engines.cluster import assign, encode
from timonel.engines.spec import RoleSpec
from timonel.errors import SpecError
from timonel.training.worker.task.cluster import Cluster, parse_cluster

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
