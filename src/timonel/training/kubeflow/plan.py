"""Turn a job of Kubeflow into a training request and complete its engine specification."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from timonel.engines import JobSpec, RoleName, RoleSpec
from timonel.engines.resources import Volume
from timonel.errors import NotFoundError, SpecError
from timonel.training.entries import Entry, Program, find_program
from timonel.training.kubeflow.commands import ProgramCommand, parse_command
from timonel.training.kubeflow.job import ManifestJob, ReplicaSpec
from timonel.training.kubeflow.manifest import parse_manifest
from timonel.training.kubeflow.mpi_program import check_program
from timonel.training.kubeflow.pods import PodSpec

_SET_BY_MANIFEST = (
    "strategy", "workers", "ps", "evaluator", "chief", "success_policy", "launcher", "cluster",
    "task_type", "task_index",
)  # fmt: skip


@dataclass(frozen=True)
class ManifestPlan:
    """A job of Kubeflow as a training request."""

    job: ManifestJob
    program: Program
    args: tuple[str, ...]  # of the leader's program
    role_args: Mapping[RoleName, tuple[str, ...]]  # of the other roles' programs
    shares_machine: bool  # the engine runs tasks on this machine
    is_in_image: bool  # the program is, and not on this machine

    def options(self, given: Container[str]) -> dict[str, Any]:
        """Return the options of `train`, without those that the user gave."""
        for name in _SET_BY_MANIFEST:
            if name in given:
                raise SpecError(
                    f"--{name.replace('_', '-')} cannot be used with --file, which sets it",
                    hint="remove it, or change the manifest",
                )
        replicas = self.job.replicas
        counts = {role: replica.replicas for role, replica in replicas.items()}
        found: dict[str, Any] = {
            "strategy": "auto" if self.job.is_mpi or self._creates_strategy else "none",
            "workers": counts.get("chief", 0) + counts.get("worker", 0),
            "ps": counts.get("ps", 0),
            "evaluator": "evaluator" in counts,
            "chief": "chief" if "chief" in counts else "worker",
            "success_policy": self.job.success,
            "name": self.job.name,
        }
        if self.job.is_mpi:
            found["batch_size_is"] = "per-replica"  # each process of MPI reads its own batches
        if all(replica.restart == "Never" for replica in replicas.values()):
            found["max_restarts"] = 0
        elif self.job.limits.restarts is not None:
            found["max_restarts"] = self.job.limits.restarts
        if self.job.limits.runtime_s is not None:
            found["max_runtime"] = self.job.limits.runtime_s
        return {name: value for name, value in found.items() if name not in given}

    def complete(self, spec: JobSpec) -> JobSpec:
        """Return the engine's specification with what the manifest says about pods."""
        found: dict[str, Any] = {"roles": tuple(map(self._role, spec.roles))}
        graces = [pod.stop_grace_s for pod in self._pods if pod.stop_grace_s is not None]
        if graces:
            found["stop_grace_s"] = float(max(graces))
        if not self.shares_machine:
            found |= {"image": self._image(), "volumes": self._volumes()}
        if self.is_in_image:
            found["source"] = None
        return spec.model_copy(update=found)

    def notes(self) -> Iterator[str]:
        """Yield what has no effect, or another one than in Kubeflow."""
        yield from self.job.notes
        if self.job.is_mpi:
            yield "batch sizes are those of each process, unless --batch-size-is changes it"
        if self._creates_strategy:
            yield "the program gets the job's strategy, as with --workers, instead of its own"
        if self.job.is_mpi and self.is_in_image:
            yield (
                "the program in the image is not checked for Horovod and mpi4py: with them, each "
                "task would train alone"
            )
        policies = {replica.restart for replica in self.job.replicas.values()}
        if policies & {"Always", "OnFailure"}:
            yield "errors of the program fail the job at once, whatever the restartPolicy"
        if "Never" in policies and len(policies) > 1:
            yield "all tasks restart together, also those with the restartPolicy Never"
        if any(pod.working_dir for pod in self._pods):
            yield "workingDir is only where the program is found; tasks run in another folder"
        names = dict.fromkeys(name for pod in self._pods for name in pod.of_machines())
        if self.shares_machine and names:
            yield f"fields without effect on this machine: {', '.join(names)}"

    @property
    def _creates_strategy(self) -> bool:
        """Whether the program creates the strategy that `auto` chooses for these roles."""
        # Keras' ``fit`` does not work with it alone; the program gets that of the job.
        has_servers = "ps" in self.job.replicas
        if has_servers and "chief" not in self.job.replicas:
            return False
        name = b"ParameterServerStrategy" if has_servers else b"MultiWorkerMirroredStrategy"
        return name in self.program.source

    @property
    def _pods(self) -> list[PodSpec]:
        return [replica.pod for replica in self.job.replicas.values()]

    def _role(self, role: RoleSpec) -> RoleSpec:
        pod = self.job.replicas[role.name].pod
        env = dict(pod.env)
        found: dict[str, Any] = {"env": env, "serves": role.serves or role.name == "evaluator"}
        if not self.shares_machine:
            found |= {"resources": pod.resources, "placement": pod.placement}
        if self.is_in_image and self.program.kind == "module" and pod.working_dir:
            env.setdefault("PYTHONPATH", pod.working_dir)
        return role.model_copy(update=found)

    def _image(self) -> str | None:
        images = {pod.image for pod in self._pods}
        if len(images) > 1:
            raise SpecError(
                f"replicas need one image, got {', '.join(sorted(map(str, images)))}",
                hint="build one image for all of them",
            )
        return images.pop()

    def _volumes(self) -> tuple[Volume, ...]:
        found: dict[str, Volume] = {}
        for volume in (each for pod in self._pods for each in pod.volumes):
            if found.setdefault(volume.mount_path, volume) != volume:
                raise SpecError(
                    f"replicas mount different volumes at {volume.mount_path}",
                    hint="mount them at different paths",
                )
        return tuple(found.values())


def plan_manifest(
    path: Path,
    entry: Entry | None,
    args: Sequence[str],
    environ: Mapping[str, str],
    *,
    shares_machine: bool,
) -> ManifestPlan:
    """Read a manifest and find its program, or that of ``entry``, which replaces it."""
    job = parse_manifest(_read(path), needs_command=entry is None)
    replicas = job.replicas
    environ = {**environ, **next(iter(replicas.values())).pod.env}
    if entry is not None:
        program = find_program(entry, environ)
        is_given = bool(args) or callable(entry)
        found = {role: tuple(args) if is_given else _args(each) for role, each in replicas.items()}
        return _plan(job, program, found, shares_machine=shares_machine)
    commands = {
        role: parse_command(
            replica.pod.command if replica.pod.has_command else (),
            f"the container of {replica.type_name}",
        )
        for role, replica in replicas.items()
    }
    places = {role: _place(commands[role], replica) for role, replica in replicas.items()}
    leader, *others = places
    for role in others:
        if places[role] != places[leader]:
            raise SpecError(
                f"replicas need one program, got {places[leader]} and {places[role]}",
                hint="use one script, which reads its role from TF_CONFIG",
            )
    command, place = commands[leader], places[leader]
    if not shares_machine:
        program = _program_of_image(command, place)
    elif command.kind == "module":
        program = find_program(command.name, environ)
    else:
        program = find_program(_find_script(place, path), environ)
    found = {role: tuple(args) or command.args for role, command in commands.items()}
    return _plan(job, program, found, shares_machine=shares_machine, is_in_image=not shares_machine)


def _plan(
    job: ManifestJob,
    program: Program,
    args: Mapping[RoleName, tuple[str, ...]],
    *,
    shares_machine: bool,
    is_in_image: bool = False,
) -> ManifestPlan:
    if job.is_mpi and not is_in_image:
        check_program(program)
    leader = args[next(iter(job.replicas))]
    others = {role: words for role, words in args.items() if words != leader}
    return ManifestPlan(job, program, leader, others, shares_machine, is_in_image)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise NotFoundError(f"no manifest at {path}", hint="give a YAML file") from None
    except OSError as error:
        raise SpecError(f"cannot read the manifest {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the manifest {path} is no text", hint="write it as YAML") from error


def _args(replica: ReplicaSpec) -> tuple[str, ...]:
    """Return the arguments of a container for another program than its own."""
    if not replica.pod.has_command:
        return replica.pod.command
    try:
        return parse_command(replica.pod.command, replica.type_name).args
    except SpecError:
        return ()


def _place(command: ProgramCommand, replica: ReplicaSpec) -> str:
    """Return the module's name, or the script's path in the container."""
    if command.kind == "module":
        return command.name
    return str(PurePosixPath(replica.pod.working_dir or "", command.name))


def _program_of_image(command: ProgramCommand, place: str) -> Program:
    if command.kind == "script" and not place.startswith("/"):
        raise SpecError(
            f"the path of {place} in the image is not known",
            hint="give the container a workingDir, or the script's absolute path",
        )
    return Program(command.kind, place, command.name, b"", "keras")


def _find_script(place: str, manifest: Path) -> Path:
    """Find a container's script: the longest part of its path beside the manifest, or here."""
    parts = [part for part in PurePosixPath(place).parts if part not in {"/", ".", ".."}]
    folders = (manifest.absolute().parent, Path.cwd())
    for start in range(len(parts)):
        for folder in folders:
            found = folder.joinpath(*parts[start:])
            if found.is_file():
                return found
    raise NotFoundError(
        f"no script {parts[-1] if parts else place} beside {manifest} or in this folder",
        hint=f"name it: timonel train SCRIPT -f {manifest}",
    )
