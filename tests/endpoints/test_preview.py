"""Objects of a cluster that a deployment would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from timonel.endpoints.launch import preview
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.storage.document_store import FolderDocuments


def test_a_deployment_shows_its_objects(bucket: Workspace, model: str, tmp_path: Path) -> None:
    objects = preview(model, workspace=bucket, on="kubernetes", min_replicas=2, cpus=2.0)
    kinds = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert kinds == [
        ("Deployment", "endpoints-controller"),
        ("PodDisruptionBudget", "endpoints-controller"),
        ("ServiceAccount", "endpoints-controller"),
        ("Role", "endpoints-controller"),
        ("RoleBinding", "endpoints-controller"),
        ("Service", "digits"),
        ("Deployment", "digits-v3"),
        ("PodDisruptionBudget", "digits-v3"),
    ]
    (server,) = objects[6]["spec"]["template"]["spec"]["containers"]
    assert server["image"] == "registry.example/serve:1"
    assert server["resources"]["requests"]["cpu"] == "2000m"
    assert {"serve", "--version", "3"} <= set(server["args"])
    assert FolderDocuments(tmp_path / "endpoints").find() == []


def test_the_autoscaler_of_the_cluster_is_shown(
    bucket: Workspace, model: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "algorithm: cluster\nmin_replicas: 2\nmax_replicas: 9\n"
        "cluster_metrics: [{type: External}]\n"
    )
    shown = preview(model, workspace=bucket, on="kubernetes", policy=str(policy))[-1]
    assert (shown["kind"], shown["metadata"]["name"]) == ("HorizontalPodAutoscaler", "digits-v3")
    assert (shown["spec"]["minReplicas"], shown["spec"]["maxReplicas"]) == (2, 9)
    assert shown["spec"]["metrics"] == [{"type": "External"}]
    objects = preview(model, workspace=bucket, on="kubernetes", policy=str(policy), target_rps=5.0)
    assert "HorizontalPodAutoscaler" not in {each["kind"] for each in objects}


def test_models_of_this_machine_are_refused(bucket: Workspace, tmp_path: Path) -> None:
    local = tmp_path / "models/digits"
    (local / "1").mkdir(parents=True)
    (local / "1/saved_model.pb").write_text("x")
    with pytest.raises(SpecError, match="servers of a cluster cannot read the model"):
        preview(str(local), workspace=bucket, on="kubernetes")


def test_keys_are_checked_and_neither_shown_nor_stored(
    bucket: Workspace, model: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a=b")
    with pytest.raises(SpecError, match="with a key of 16 characters or more"):
        preview(model, workspace=bucket, on="kubernetes", api_keys=str(keys))
    keys.write_text("shop=0123456789abcdef\n")
    objects = preview(model, workspace=bucket, on="kubernetes", api_keys=str(keys))
    assert "0123456789abcdef" not in str(objects)
    assert "Secret" not in {each["kind"] for each in objects}
    assert FolderDocuments(tmp_path / "confidential").find() == []


def test_an_unknown_version_is_refused(bucket: Workspace, model: str) -> None:
    with pytest.raises(NotFoundError, match="digits has no version 7") as refused:
        preview(f"{model}/7", workspace=bucket, on="kubernetes")
    assert refused.value.hint == "it has 3"
