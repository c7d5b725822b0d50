"""Rights of users: those that the engine uses, and those of coordinators."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.kubernetes.specs import SETTINGS, WORKSPACE, spec
from timonel.engines import JobState, JobStatus, RoleSpec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.manifests import job_manifests
from timonel.engines.kubernetes.names import STATUS_KEY
from timonel.engines.kubernetes.rights import Right, subject, user_manifests, user_rights
from timonel.errors import SpecError
from timonel.storage import find_workspace

_FINALIZERS = Right("batch", "jobs/finalizers", "update")


def _rights(rules: list[dict[str, list[str]]]) -> set[Right]:
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_users_have_the_rights_that_the_engine_uses_and_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    api = MemoryApi()
    engine = KubernetesEngine(find_workspace(f"memory://{uuid.uuid4().hex}"), api, SETTINGS)
    job = spec(RoleSpec(name="worker", replicas=3, min_replicas=1), job_id="one")
    engine.submit(job)
    assert engine.status("one").state is JobState.PENDING
    assert list(engine.logs("one")) == []
    assert [status.job_id for status in engine.jobs()] == ["one"]
    engine.scale("one", {"worker": 2})
    engine.cancel("one")
    status = JobStatus.of(job, 1.0).model_copy(update={"state": JobState.FAILED})
    api.objects["ConfigMap", "one"]["data"][STATUS_KEY] = status.model_dump_json()
    engine.resume("one")
    manifests = job_manifests(job, SETTINGS, WORKSPACE, "token", status)
    (role,) = [each for each in manifests if each["kind"] == "Role"]
    assert set(user_rights()) == api.used | _rights(role["rules"]) | {_FINALIZERS}


def test_the_role_has_these_rights_and_the_binding_names_it() -> None:
    role, binding = user_manifests("team", [subject("User", "ana@example.org", "team")])
    assert _rights(role["rules"]) == set(user_rights())
    assert "*" not in str(role)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {each["metadata"]["namespace"] for each in (role, binding)} == {"team"}
    assert user_manifests("team", []) == [role]


def test_subjects() -> None:
    assert subject("Group", "ml", "team")["apiGroup"] == "rbac.authorization.k8s.io"
    own = {"kind": "ServiceAccount", "name": "ci", "namespace": "team"}
    assert subject("ServiceAccount", "ci", "team") == own
    assert subject("ServiceAccount", "build:ci", "team") == {**own, "namespace": "build"}
    with pytest.raises(SpecError, match="the User has no name"):
        subject("User", "", "team")
