"""Checks of the queue and the claim of jobs, before a job is created."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.kubernetes.specs import SETTINGS, spec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.api_errors import Call
from timonel.engines.kubernetes.rights import Right
from timonel.errors import SpecError
from timonel.storage import Workspace

pytestmark = pytest.mark.enable_socket

_WITH_QUEUE = SETTINGS.model_copy(update={"queue": "vision"})
_WITH_CLAIM = SETTINGS.model_copy(update={"claim": "tema:/mnt/team"})


class _WithoutKueue(MemoryApi):
    def _stored(self, call: Call, body: Any) -> tuple[int, Any]:
        if call.kind == "LocalQueue":
            return 404, {"message": "404 page not found"}
        return super()._stored(call, body)


def test_a_queue_that_does_not_exist_is_an_error(bucket: Workspace) -> None:
    api = MemoryApi()
    engine = KubernetesEngine(bucket, api, _WITH_QUEUE)
    with pytest.raises(SpecError, match="no queue 'vision' in namespace 'team'") as raised:
        engine.submit(spec())
    assert "'kubectl get localqueues -n team'" in str(raised.value.hint)
    assert not api.objects
    api.objects["LocalQueue", "vision"] = {"metadata": {"name": "vision"}}
    engine.submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_a_queue_without_kueue_is_an_error(bucket: Workspace) -> None:
    api = _WithoutKueue()
    with pytest.raises(SpecError, match="Kueue is not installed in this cluster") as raised:
        KubernetesEngine(bucket, api, _WITH_QUEUE).submit(spec())
    assert "unset TIMONEL_KUBERNETES_QUEUE" in str(raised.value.hint)
    assert not api.objects


def test_users_who_may_not_read_queues_can_use_one(bucket: Workspace) -> None:
    api = MemoryApi()
    api.denied.add(Right("kueue.x-k8s.io", "localqueues", "get"))
    KubernetesEngine(bucket, api, _WITH_QUEUE).submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_a_claim_that_does_not_exist_is_an_error(bucket: Workspace) -> None:
    api = MemoryApi()
    engine = KubernetesEngine(bucket, api, _WITH_CLAIM)
    expected = "no PersistentVolumeClaim 'tema' in namespace 'team'"
    with pytest.raises(SpecError, match=expected) as raised:
        engine.submit(spec())
    assert "set TIMONEL_KUBERNETES_CLAIM to NAME:/mnt/team with a NAME" in str(raised.value.hint)
    assert not api.objects
    api.objects["PersistentVolumeClaim", "tema"] = {"metadata": {"name": "tema"}}
    engine.submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_users_who_may_not_read_claims_can_use_one(bucket: Workspace) -> None:
    api = MemoryApi()
    api.denied.add(Right("", "persistentvolumeclaims", "get"))
    KubernetesEngine(bucket, api, _WITH_CLAIM).submit(spec())
    assert ("Job", "train-flowers") in api.objects
