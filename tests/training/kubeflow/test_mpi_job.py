"""Manifests of MPIJobs: what is taken, noted and refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from timonel.errors import SpecError
from timonel.training.kubeflow.job import ManifestJob
from timonel.training.kubeflow.manifest import parse_manifest

_OF_LAUNCHER = "Launcher fields without effect, as tasks run in pods of Worker"


def document(
    command: str = "mpirun python /app/train.py",
    launcher: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    version: str = "v1",
    **spec: Any,
) -> dict[str, Any]:
    """Return an MPIJob with two workers, and further fields of its containers."""
    first = {"name": "mpi", "image": "a:1", "command": command.split(), **(launcher or {})}
    second = {"name": "mpi", "image": "a:1", **(worker or {})}
    replicas = {
        "Launcher": {"template": {"spec": {"containers": [first]}}},
        "Worker": {"replicas": 2, "template": {"spec": {"containers": [second]}}},
    }
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "spec": {"mpiReplicaSpecs": replicas, **spec},
    }


def parsed(value: dict[str, Any], **options: Any) -> ManifestJob:
    return parse_manifest(yaml.safe_dump(value), **options)


@pytest.mark.parametrize(("version", "restart"), [("v1", "Never"), ("v2beta1", "OnFailure")])
def test_defaults_are_those_of_the_operator(version: str, restart: str) -> None:
    job = parsed(document(version=version))
    (replica,) = job.replicas.values()
    assert (replica.replicas, replica.restart, job.success) == (2, restart, "all-workers")
    assert replica.pod.command == ("python", "/app/train.py")
    assert job.notes == ()


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (document(slotsPerWorker=3), 6),
        (document("mpirun -np 5 python t.py", slotsPerWorker=3), 5),
        (document("mpirun -npernode 2 python t.py", slotsPerWorker=3), 4),
        (document(version="v2beta1", slotsPerWorker=2, runLauncherAsWorker=True), 6),
        (document(launcher={"resources": {"limits": {"nvidia.com/gpu": 1}}}), 3),
    ],
)
def test_each_process_is_a_task(value: dict[str, Any], count: int) -> None:
    assert parsed(value).replicas["worker"].replicas == count


def test_a_launcher_can_be_the_only_worker() -> None:
    value = document(version="v2beta1", runLauncherAsWorker=True)
    del value["spec"]["mpiReplicaSpecs"]["Worker"]
    (replica,) = parsed(value).replicas.values()
    assert (replica.replicas, replica.pod.image) == (1, "a:1")


def test_what_differs_in_the_launcher_is_noted() -> None:
    job = parsed(
        document(
            "mpirun -x A -bind-to none python t.py",
            launcher={
                "image": "b:1",
                "resources": {"limits": {"cpu": 1}},
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            },
            worker={"command": ["sleep", "infinity"]},
            cleanPodPolicy="None",
            mainContainer="mpi",
        )
    )
    assert job.replicas["worker"].pod.env == {"A": "1"}
    assert job.notes == (
        "cleanPodPolicy has no effect: tasks are stopped when the job ends",
        "mainContainer has no effect: a pod has one container",
        "the Worker's command has no effect: its tasks run the program of mpirun",
        f"{_OF_LAUNCHER}: image, resources, env without -x (B)",
        "mpirun options without effect: -bind-to none",
    )


def test_a_pod_is_divided_among_its_slots() -> None:
    limits = {"cpu": 3, "memory": "3Gi", "nvidia.com/gpu": 4}
    value = document(worker={"resources": {"limits": limits}}, slotsPerWorker=2)
    resources = parsed(value).replicas["worker"].pod.resources
    assert (resources.cpus, resources.memory_bytes) == (1.5, 3 << 29)
    assert resources.accelerators == {"nvidia.com/gpu": 2}
    value["spec"]["slotsPerWorker"] = 3
    with pytest.raises(SpecError, match=r"4 nvidia\.com/gpu cannot be divided among 3 processes"):
        parsed(value)


def test_a_pod_is_divided_among_the_processes_that_mpirun_starts_in_it() -> None:
    limits = {"nvidia.com/gpu": 8}
    value = document(
        "mpirun -npernode 1 python t.py",
        worker={"resources": {"limits": limits}},
        slotsPerWorker=8,
    )
    assert parsed(value).replicas["worker"].pod.resources.accelerators == limits


def without(role: str) -> dict[str, Any]:
    value = document()
    del value["spec"]["mpiReplicaSpecs"][role]
    return value


def test_a_command_is_needed_unless_another_program_is_given() -> None:
    value = document("./run.sh")
    with pytest.raises(SpecError, match="must run mpirun, mpiexec or horovodrun"):
        parsed(value)
    job = parsed(value, needs_command=False)
    assert job.replicas["worker"].replicas == 2
    assert job.notes[0] == (
        "each slot gets a task, because the Launcher must run mpirun, mpiexec or horovodrun, but "
        "it runs './run.sh'"
    )


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (without("Launcher"), "must have a Launcher"),
        (without("Worker"), "must have a Worker"),
        (document("mpirun -np 3 python t.py"), "starts 3 processes, but the MPIJob has 2 slots"),
        (document(slotsPerWorker=0), "slotsPerWorker must be at least 1, got 0"),
        (document(mpiImplementation="LAM"), "must be one of OpenMPI, Intel, MPICH, got 'LAM'"),
        (document(slotPerWorker=1), "slotPerWorker is unknown"),
        (document(runPolicy={"suspend": True}), "suspend is true"),
        (document(mpiReplicaSpecs={"Boss": {}}), "Boss is no replica type of an MPIJob"),
        (document(version="v1alpha2"), "got MPIJob of kubeflow.org/v1alpha2"),
        (document(worker={"envFrom": []}), "envFrom is not supported"),
    ],
)
def test_what_has_no_equivalent_is_refused(value: dict[str, Any], part: str) -> None:
    with pytest.raises(SpecError) as error:
        parsed(value)
    assert part in str(error.value)
