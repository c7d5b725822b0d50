"""The control plane as a service of an engine."""

from __future__ import annotations

from pathlib import Path

from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.endpoints.control.service import SERVICE, update_control
from timonel.engines.kubernetes import KubernetesServiceEngine
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.storage import Workspace


def test_changed_settings_of_the_cluster_make_another_revision(tmp_path: Path) -> None:
    api = MemoryApi()
    workspace = Workspace(tmp_path, "s3://bucket/team")
    settings = ClusterSettings(image="registry.example/timonel:1")
    routed = settings.model_copy(update={"domain": "models.example.org"})
    for each, revision in ((settings, "1"), (settings, "1"), (routed, "2"), (settings, "3")):
        update_control(workspace, KubernetesServiceEngine(api, each))
        deployment = api.objects["Deployment", SERVICE]
        assert deployment["metadata"]["labels"]["timonel.dev/revision"] == revision
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        found = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert found.get("TIMONEL_KUBERNETES_DOMAIN") == each.domain
