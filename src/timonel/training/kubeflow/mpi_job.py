"""Parse the specification of an MPIJob: its processes become workers of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from timonel.engines.resources import Resources
from timonel.errors import SpecError
from timonel.training.kubeflow.fields import Fields
from timonel.training.kubeflow.job import (
    ManifestJob,
    ReplicaSpec,
    parse_clean_pod_policy,
    parse_replica,
    parse_run_policy,
)
from timonel.training.kubeflow.mpi_command import MpiCommand, parse_mpi_command
from timonel.training.kubeflow.pods import PodSpec

API_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v2beta1")
_NO_LAUNCHER = "tasks start together, without a launcher"
NOTED: Mapping[str, Mapping[str, str]] = {
    "spec of an MPIJob": {
        "sshAuthMountPath": "tasks need no ssh",
        "launcherCreationPolicy": _NO_LAUNCHER,
        "waitForWorkers": _NO_LAUNCHER,
        "mainContainer": "a pod has one container",
    }
}
"""Fields without effect, with the reason, by object."""


def parse_mpi_job(
    version: str, name: str | None, spec: Fields, *, needs_command: bool = True
) -> ManifestJob:
    """Parse the specification of an MPIJob; the API version decides defaults.

    ``needs_command`` refuses a Launcher's command that cannot be parsed. Otherwise each slot gets a
    task.
    """
    slots = spec.amount("slotsPerWorker", least=1) or 1
    implementation = spec.choice("mpiImplementation", ("OpenMPI", "Intel", "MPICH"))
    is_worker_too = spec.take("runLauncherAsWorker", bool) or False
    launcher, worker = _replicas(spec.child("mpiReplicaSpecs"), version)
    parse_clean_pod_policy(spec)
    limits = parse_run_policy(spec.child("runPolicy"))
    spec.note(NOTED["spec of an MPIJob"])
    spec.close()
    if version == "kubeflow.org/v1":  # the operator gives a Launcher with GPUs slots as well
        is_worker_too = any("gpu" in kind for kind in launcher.pod.resources.accelerators)
    pods = worker.replicas + is_worker_too
    if not pods:
        raise SpecError(
            f"{spec.at('mpiReplicaSpecs')} must have a Worker", hint="give it replicas: 1 or more"
        )
    base = worker.pod if worker.replicas else launcher.pod
    command = _command(launcher.pod, implementation or "OpenMPI", spec.notes, needs_command)
    pod = replace(
        base,
        has_command=bool(command.program),
        command=command.program,
        working_dir=command.working_dir or launcher.pod.working_dir or base.working_dir,
        env={**base.env, **command.env},
        resources=_per_process(base.resources, command.per_pod or slots),
    )
    count = _processes(command, pods, slots)
    if worker.replicas:
        spec.notes.update(dict.fromkeys(_notes(launcher, worker, command)))
    return ManifestJob(
        name=name,
        replicas={"worker": ReplicaSpec(launcher.type_name, count, launcher.restart, pod)},
        limits=limits,
        success="all-workers",
        notes=tuple(spec.notes),
        is_mpi=True,
    )


def _replicas(specs: Fields, version: str) -> tuple[ReplicaSpec, ReplicaSpec]:
    """Return the launcher and the workers."""
    found: dict[str, ReplicaSpec] = {}
    for type_name in list(specs.values):
        role = type_name.lower()
        if role not in {"launcher", "worker"}:
            raise SpecError(
                f"{specs.at(type_name)} is no replica type of an MPIJob",
                hint="use Launcher and Worker",
            )
        if role in found:
            raise SpecError(f"{specs.at(type_name)} repeats the role {role}", hint="remove one")
        is_launcher = role == "launcher"
        restarts = is_launcher and version != "kubeflow.org/v1"
        found[role] = parse_replica(
            specs.child(type_name),
            type_name,
            None,
            count=int(is_launcher),
            restart="OnFailure" if restarts else "Never",
        )
    if "launcher" not in found:
        raise SpecError(f"{specs.path} must have a Launcher")
    launcher = found["launcher"]
    if launcher.replicas != 1:
        raise SpecError(
            f"{specs.at(launcher.type_name)} must have one replica, got {launcher.replicas}"
        )
    return launcher, found.get("worker", replace(launcher, type_name="Worker", replicas=0))


def _command(
    pod: PodSpec, implementation: str, notes: dict[str, None], needs_command: bool
) -> MpiCommand:
    try:
        return parse_mpi_command(pod.command if pod.has_command else (), implementation, pod.env)
    except SpecError as error:
        if needs_command:
            raise
        notes[f"each slot gets a task, because {error.message}"] = None
        return MpiCommand(program=())


def _processes(command: MpiCommand, pods: int, slots: int) -> int:
    count = command.processes
    if count is None:
        count = pods * (command.per_pod or slots)
    if count > pods * slots:
        raise SpecError(
            f"mpirun starts {count} processes, but the MPIJob has {pods * slots} slots",
            hint="change -np, the replicas of Worker, or slotsPerWorker",
        )
    return count


def _per_process(resources: Resources, processes: int) -> Resources:
    """Return one process's part of the resources of a pod with so many."""
    for kind, count in resources.accelerators.items():
        if count % processes:
            raise SpecError(
                f"{count} {kind} cannot be divided among {processes} processes of a Worker",
                hint="start one process for each accelerator of a Worker: set slotsPerWorker",
            )
    cpus, memory = resources.cpus, resources.memory_bytes
    return Resources(
        cpus=None if cpus is None else cpus / processes,
        memory_bytes=None if memory is None else max(1, memory // processes),
        accelerators={kind: count // processes for kind, count in resources.accelerators.items()},
    )


def _notes(launcher: ReplicaSpec, worker: ReplicaSpec, command: MpiCommand) -> Iterator[str]:
    """Yield what of the pods and of mpirun's options has no effect."""
    if worker.pod.has_command:
        yield "the Worker's command has no effect: its tasks run the program of mpirun"
    if worker.restart not in {"Never", launcher.restart}:
        yield "the Worker's restartPolicy has no effect: that of the Launcher counts"
    names = list(launcher.pod.of_machines(worker.pod))
    env = [name for name in launcher.pod.env if name not in {**command.env, **worker.pod.env}]
    if env:
        names.append(f"env without -x ({', '.join(env)})")
    if names:
        yield f"Launcher fields without effect, as tasks run in pods of Worker: {', '.join(names)}"
    if command.ignored:
        yield f"mpirun options without effect: {' '.join(command.ignored)}"
