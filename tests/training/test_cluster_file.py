from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import NotFoundError, SpecError
from timonel.training.cluster_file import read_cluster

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
        (CLUSTER, (None, None), "no task"),
        (CLUSTER, ("worker", 2), "from 0 to 1 for worker, got 2"),
        (CLUSTER, ("worker", -1), "got -1"),
        (CLUSTER, ("master", 0), "got 'master'"),
        ({"ps": ["a:1"]}, ("ps", 0), "a chief or a worker"),
        ({"chief": ["a:1", "b:1"]}, ("chief", 0), "one chief"),
        ({"boss": ["a:1"]}, ("boss", 0), "got 'boss'"),
        ({"chief": "a:1"}, ("chief", 0), "a list of addresses"),
        ({"chief": []}, ("chief", 0), "a list of addresses"),
        ({"chief": ["a"]}, ("chief", 0), "host:port for chief, got 'a'"),
        ({"chief": [3]}, ("chief", 0), "got 3"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, ("chief", 0), "a:1 twice"),
        ({}, ("chief", 0), "under 'cluster'"),
        (None, ("chief", 0), "under 'cluster'"),
    ],
)
def test_what_is_no_cluster(
    place: Path, cluster: Any, task: tuple[str | None, int | None], words: str
) -> None:
    place.write_text(json.dumps({"cluster": cluster}))
    with pytest.raises(SpecError, match=words.replace("[", r"\[")):
        read_cluster(str(place), *task, {})


@pytest.mark.parametrize(("text", "words"), [("{", "expected JSON"), ("[]", "an object")])
def test_what_is_no_document(place: Path, text: str, words: str) -> None:
    place.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_cluster(str(place), "chief", 0, {})


@pytest.mark.parametrize("place", ["nowhere.json", "env"])
def test_there_is_none(place: str) -> None:
    with pytest.raises(NotFoundError, match="found none"):
        read_cluster(place, "chief", 0, {})
