"""Validate the arguments of `train` before anything is created or started."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from timonel.data import Dataset
from timonel.errors import MissingExtraError, SpecError
from timonel.storage.filesystems import open_filesystem
from timonel.tracking.mirrors.base import ENVIRONMENT_VARIABLE, named_mirrors
from timonel.training import functions
from timonel.training.combinations import check_settings
from timonel.training.entries import Entry, Program, find_program
from timonel.training.kubeflow.plan import ManifestPlan
from timonel.training.machines import Machines
from timonel.training.settings import Settings
from timonel.units import parse_seconds

_SEEDS = 1 << 32
"""NumPy accepts only smaller seeds."""
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_DATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class JobOptions:
    """Job options that are not training settings."""

    seed: int
    name: str | None = None
    max_restarts: int = 3
    max_runtime_s: float | None = None
    warm: bool = True  # tasks are forked from a process with TensorFlow imported
    pass_job_dir: bool = False
    wandb: bool = False
    wandb_project: str | None = None
    machines: Machines = field(default_factory=Machines)

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise SpecError(f"--max-restarts must be at least 0, got {self.max_restarts}")
        if not 0 <= self.seed < _SEEDS:
            raise SpecError(f"--seed must be from 0 to {_SEEDS - 1}, got {self.seed}")
        if self.wandb_project and not self.wandb:
            raise SpecError("--wandb-project requires --wandb")
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise MissingExtraError("--wandb", "wandb")
        named = named_mirrors()
        if self.wandb and named is not None and "wandb" not in named:
            raise SpecError(
                f"--wandb is set, but {ENVIRONMENT_VARIABLE}={','.join(sorted(named))} excludes it",
                hint=f"unset {ENVIRONMENT_VARIABLE}, or remove --wandb",
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the job's options among all options of `train`; the seed is random if None."""
        machines = Machines.parse(given)
        own = {each.name: given[each.name] for each in fields(cls) if each.name in given}
        if own["seed"] is None:
            own["seed"] = secrets.randbelow(1 << 31)
        return cls(**own, max_runtime_s=_runtime_s(given["max_runtime"]), machines=machines)


def _runtime_s(given: float | str | None) -> float | None:
    try:
        found = None if given is None else parse_seconds(given)
    except SpecError as error:
        raise SpecError(f"--max-runtime: {error.message}") from None
    if found == 0:
        raise SpecError(f"--max-runtime must be more than 0, got {given}")
    return found


@dataclass(frozen=True)
class TrainingRequest:
    """A validated training request."""

    program: Program
    datasets: Mapping[str, Dataset]  # by name; the unnamed one has the name ``''``
    settings: Settings
    params: Mapping[str, Any]  # texts for flags, or a function's keywords unchanged
    args: tuple[str, ...]  # of a program with a command line
    call: functions.FunctionCall | None = None
    manifest: ManifestPlan | None = None

    @property
    def is_in_image(self) -> bool:
        """Whether the program is in the image of the tasks, and not on this machine."""
        return self.manifest is not None and self.manifest.is_in_image


def check_request(
    entry: Entry | ManifestPlan,
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None,
    settings: Settings,
    params: Mapping[str, Any] | None,
    args: Sequence[str],
    pass_job_dir: bool = False,
) -> TrainingRequest:
    """Check all that can be checked without running the program."""
    if isinstance(entry, ManifestPlan):
        manifest, program = entry, entry.program
    else:
        manifest, program = None, find_program(entry, os.environ)
    check_settings(settings)
    if settings.checkpoints.checkpoint_uri is not None:
        # Raises if its package is not installed.
        open_filesystem(settings.checkpoints.checkpoint_uri)
    datasets = {name: Dataset.open(uri) for name, uri in _named(data).items()}
    spread = settings.distribution
    for dataset in datasets.values():
        records, replicas = dataset.count("train"), spread.workers * spread.devices_per_worker
        if records < replicas:
            raise SpecError(
                f"{dataset.uri} has {records} training records, fewer than the {replicas} replicas",
                hint="use fewer workers, or convert with another --splits",
            )
        dataset.check_sizes()
    given = _params(program, params or {})
    call = None
    if program.function is not None:
        folder = {"job_dir": ""} if pass_job_dir else {}
        functions.check_call(program.function, {**given, **folder})
        call = functions.call_of(program.function, given)
        if args:
            name = functions.described(program.function)
            raise SpecError(
                f"the function {name} takes no args, got {list(args)}",
                hint="pass its arguments by name, with params",
            )
    return TrainingRequest(
        program=program,
        datasets=datasets,
        settings=settings,
        params=given,
        args=tuple(args),
        call=call,
        manifest=manifest,
    )


def _named(data: str | os.PathLike[str] | Mapping[str, str] | None) -> dict[str, str]:
    if data is None:
        return {}
    if isinstance(data, str | os.PathLike):
        return {"": os.fspath(data)}
    for name in data:
        if name and not _DATA_NAME.match(name):
            raise SpecError(
                f"a dataset's name has only letters, digits and '_', got {name!r}",
                hint="it becomes part of the environment variable TIMONEL_DATA_<NAME>",
            )
    return dict(data)


def _params(program: Program, params: Mapping[str, Any]) -> dict[str, Any]:
    if program.function is not None:
        return dict(params)
    for name in params:
        if not _PARAM.match(name):
            raise SpecError(
                f"a parameter's name must be valid as a flag, got {name!r}",
                hint="use letters, digits, '_', '-' and '.', and start with a letter",
            )
    return {name: str(value) for name, value in params.items()}
