"""Manifests of TFJobs, and what they share with others: what is taken, noted and refused."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.kubeflow import manifest, pods
from timonel.training.kubeflow.job import JobLimits
from timonel.training.kubeflow.manifest import ManifestJob, parse_manifest

MANIFESTS = Path(__file__).parent / "manifests"


def document(
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a TFJob with one worker and further fields."""
    first = {"name": "tensorflow", "command": ["python", "train.py"], **(container or {})}
    template = {"spec": {"containers": [first], **(pod or {})}}
    replicas = {"Worker": {"template": template}}
    body = {"tfReplicaSpecs": replicas, "runPolicy": policy or {}, **spec}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "spec": body}


def parsed(value: Any) -> ManifestJob:
    return parse_manifest(yaml.safe_dump(value))


def test_defaults_are_those_of_kubeflow() -> None:
    job = parsed(document())
    (replica,) = job.replicas.values()
    assert (replica.replicas, replica.restart) == (1, "Never")
    assert (job.name, job.success, job.notes) == (None, "chief", ())
    assert job.limits == JobLimits(restarts=None, runtime_s=None)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("128974848000m", 128_974_848), ("1500m", 2), ("1e9", 10**9), (1e9, 10**9), ("4Gi", 4 << 30)],
)
def test_quantities_are_those_of_kubernetes(memory: Any, expected: int) -> None:
    limits = {"memory": memory, "cpu": "15e-1", "nvidia.com/gpu": "2000m"}
    (replica,) = parsed(document(container={"resources": {"limits": limits}})).replicas.values()
    assert replica.pod.resources.memory_bytes == expected
    assert replica.pod.resources.cpus == 1.5
    assert replica.pod.resources.accelerators == {"nvidia.com/gpu": 2}


def test_fields_without_effect_are_noted_once() -> None:
    text = (MANIFESTS / "multi-worker-gpu.yaml").read_text()
    notes = parse_manifest(text).notes
    names = [note.partition(" has no effect")[0] for note in notes]
    assert names == [
        "serviceAccountName",
        "tolerationSeconds",
        "medium",
        "the emptyDir at /dev/shm",
        "schedulingPolicy",
    ]
    assert len(parsed(document(container={"ports": [{"containerPort": 1}]})).notes) == 1


def test_null_is_absent() -> None:
    assert parsed(document(container={"env": None, "resources": None}, policy=None)).notes == ()


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (document(container={"envFrom": []}), "containers[0].envFrom is not supported"),
        (
            document(container={"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]}),
            "containers[0].env[0].valueFrom is not supported",
        ),
        (document(container={"env": [{"name": "A", "value": 1}]}), "env[0].value must be text"),
        (document(container={"args": ["--n", 1]}), "args must be a list of text, got 1"),
        (document(container={"comand": []}), "containers[0].comand is unknown"),
        (document(container={"name": "main"}), "must be 'tensorflow', got 'main'"),
        (
            document(pod={"containers": []}),
            "must have one container, 'tensorflow', got 0: add the container of the program",
        ),
        (document(pod={"initContainers": [{}]}), "initContainers is not supported"),
        (document(pod={"tolerations": [{"operator": "Exists"}]}), "tolerates all taints"),
        (document(pod={"volumes": [{"name": "a", "hostPath": {}}]}), "hostPath is not supported"),
        (document(pod={"volumes": [{"name": "a"}]}), "must have one of persistentVolumeClaim, "),
        (
            document(pod={"volumes": [{"name": "a", "persistentVolumeClaim": None}]}),
            "must have one of persistentVolumeClaim, ",
        ),
        (document(pod={"volumes": [{"emptyDir": {}}]}), "spec.volumes[0] has no name"),
        (
            document(pod={"volumes": [{"name": "a", "emptyDir": {}}] * 2}),
            "spec.volumes[1].name repeats the volume 'a'",
        ),
        (
            document(container={"volumeMounts": [{"name": "a", "mountPath": "/a"}]}),
            "must be a volume of the pod, got 'a'",
        ),
        (document(container={"resources": {"limits": {"cpu": "many"}}}), "cpu must be a quantity"),
        (document(container={"resources": {"limits": {"memory": "x"}}}), "memory must be"),
        (document(container={"resources": {"limits": {"a/b": "1.5"}}}), "must be a whole number"),
        (document(container={"resources": {"limits": {"cpu": [1]}}}), "must be a quantity"),
        (document(policy={"suspend": True}), "spec.runPolicy.suspend is true"),
        (document(policy={"cleanPodPolicy": "Some"}), "must be one of"),
        (document(policy={"backoffLimit": -1}), "must be at least 0, got -1"),
        (document(policy={"backoffLimit": True}), "must be a whole number, got True"),
        (document(successPolicy="Any"), 'must be one of "", AllWorkers, got'),
        (document(enableDynamicWorker=True), "enableDynamicWorker is not supported"),
        (document(tfReplicaSpecs={}), "must have a Chief or a Worker"),
        (
            document(tfReplicaSpecs={"Worker": {"replicas": 10**12}}),
            "spec.tfReplicaSpecs.Worker.replicas must be at most 10000, got 1000000000000",
        ),
        (document(tfReplicaSpecs={"Boss": {}}), "spec.tfReplicaSpecs.Boss is no replica type"),
        (document(tfReplicaSpecs=[1]), "spec.tfReplicaSpecs must be a mapping, got [1]"),
        ({**document(), "kind": "PyTorchJob"}, "a TFJob of kubeflow.org/v1 or an MPIJob"),
        ({**document(), "apiVersion": "kubeflow.org/v1beta1"}, "of kubeflow.org/v1beta1"),
        ({**document(), "data": {}}, "data is unknown or not supported"),
        ([1], "the manifest has no fields"),
        (None, "must have one document, a TFJob or an MPIJob, got none"),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_is_refused(value: Any, part: str) -> None:
    with pytest.raises(SpecError) as error:
        parsed(value)
    assert part in str(error.value)


@pytest.mark.parametrize(("kind", "name"), [("configMap", "name"), ("secret", "secretName")])
def test_items_of_a_volume_are_refused_with_a_cure_that_keeps_the_paths(
    kind: str, name: str
) -> None:
    source = {name: "a", "items": [{"key": "k", "path": "p"}]}
    with pytest.raises(SpecError, match=f"{kind}.items is not supported") as error:
        parsed(document(pod={"volumes": [{"name": "a", kind: source}]}))
    assert str(error.value.hint).startswith("rename the keys of the ")


def test_an_empty_folder_may_be_null() -> None:
    (replica,) = parsed(
        document(
            pod={"volumes": [{"name": "a", "emptyDir": None}]},
            container={"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
        )
    ).replicas.values()
    assert [each.source for each in replica.pod.volumes] == ["emptydir://"]


def test_a_misspelled_field_is_corrected() -> None:
    with pytest.raises(SpecError) as error:
        parsed(document(container={"comand": []}))
    assert error.value.hint == "did you mean 'command'?"


def test_one_chief_and_one_evaluator() -> None:
    value = document()
    specs = value["spec"]["tfReplicaSpecs"]
    specs["Chief"] = {**specs["Worker"], "replicas": 2}
    with pytest.raises(SpecError, match="Chief must have one replica, got 2"):
        parsed(value)
    specs["Chief"] = specs["Master"] = specs["Worker"]
    with pytest.raises(SpecError, match="Master repeats the role chief"):
        parsed(value)


def test_several_documents() -> None:
    text = yaml.safe_dump(document())
    assert parse_manifest(f"---\n{text}\n---\n").replicas.keys() == {"worker"}
    with pytest.raises(SpecError, match="one document, a TFJob or an MPIJob, got Namespace, TFJob"):
        parse_manifest(f"kind: Namespace\n---\n{text}")


@pytest.mark.parametrize(
    "text", ["a: [", "a: b: c", "\x00", "- " * 3000, "&a [*a]", "!!python/x 1"]
)
def test_bad_yaml_is_one_line(text: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_manifest(text)
    assert "\n" not in str(error.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    nested = [(key, found) for key, found in items]
    return [
        each
        for key, found in nested
        for each in [
            (*path, key),
            *(_paths(found, (*path, key)) if isinstance(found, dict | list) else ()),
        ]
    ]


@given(st.data())
def test_any_value_anywhere_is_parsed_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in MANIFESTS.glob("*.yaml"))))
    value = copy.deepcopy(yaml.safe_load((MANIFESTS / name).read_text()))
    *folders, last = data.draw(st.sampled_from(_paths(value)))
    place = value
    for key in folders:
        place = place[key]
    place[last] = data.draw(_JSON)
    with contextlib.suppress(SpecError):
        assert parse_manifest(yaml.safe_dump(value)).replicas


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_manifest(text)


@pytest.mark.parametrize(
    ("mark", "tables"),
    [
        ("noted", {**manifest.NOTED, **pods.NOTED}),
        ("refused", {**manifest.REFUSED, **pods.REFUSED}),
    ],
)
def test_the_page_lists_each_field(mark: str, tables: dict[str, dict[str, str]]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "kubeflow.md").read_text()
    rows = page.partition(f"<!-- {mark} -->")[2].strip().split("\n\n")[0].splitlines()[2:]
    listed = {}
    for row in rows:
        head, fields = row.strip("| ").split(" | ")
        listed[head.strip("`")] = fields
    assert listed.keys() == tables.keys()
    for name, fields in tables.items():
        assert [field for field in fields if f"`{field}`" not in listed[name]] == []
