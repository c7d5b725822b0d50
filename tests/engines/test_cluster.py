from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.engines.coordination.strategies import specs
from timonel.engines.cluster import assign, encode
from timonel.engines.spec import JobSpec


@given(specs(), st.integers(1, 9))
def test_every_task_sees_the_same_cluster_and_its_own_place(spec: JobSpec, generation: int) -> None:
    addresses = {name: f"127.0.0.1:{4000 + n}" for n, name in enumerate(spec.task_ids)}
    assignments = assign(spec.roles, addresses, generation)
    assert tuple(assignments) == spec.task_ids
    for name, assignment in assignments.items():
        told = json.loads(encode(assignment))
        role, index = told["task"]["type"], told["task"]["index"]
        assert f"{role}-{index}" == name
        assert told["generation"] == generation
        assert told["cluster"] == next(iter(assignments.values()))["cluster"]
        if role == "evaluator":
            assert "evaluator" not in told["cluster"]
        else:
            assert told["cluster"][role][index] == addresses[name]


@given(specs())
def test_only_evaluators_are_outside(spec: JobSpec) -> None:
    assignments = assign(spec.roles, dict.fromkeys(spec.task_ids, "a:1"), 1)
    cluster = assignments[spec.task_ids[0]]["cluster"]
    inside = {role.name: role.replicas for role in spec.roles if role.name != "evaluator"}
    assert {role: len(members) for role, members in cluster.items()} == inside
