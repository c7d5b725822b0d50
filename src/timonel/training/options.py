"""How a job is run, apart from its program and training settings."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import dataclass
from typing import Any, Self

from timonel.errors import MissingExtraError, SpecError
from timonel.tracking.mirrors.registry import ENVIRONMENT_VARIABLE, named_mirrors

_SEEDS = 1 << 32
"""NumPy accepts only smaller seeds."""


@dataclass(frozen=True)
class JobOptions:
    """Options of a job, apart from its program and training settings.

    Attributes:
        seed: The seed shared by all tasks.
        name: Name of the run.
        max_restarts: How often the job restarts after it lost a task.
        warm: Whether tasks are forked from a process with TensorFlow imported.
        pass_job_dir: Whether the program receives the job's folder as a flag or keyword.
        wandb: Whether the run is copied to Weights & Biases.
        wandb_project: The Weights & Biases project.
    """

    seed: int
    name: str | None = None
    max_restarts: int = 3
    warm: bool = True
    pass_job_dir: bool = False
    wandb: bool = False
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise SpecError(f"expected max_restarts of at least 0, got {self.max_restarts}")
        if not 0 <= self.seed < _SEEDS:
            raise SpecError(f"expected a seed from 0 to {_SEEDS - 1}, got {self.seed}")
        if self.wandb_project and not self.wandb:
            raise SpecError("expected --wandb with --wandb-project, got the project alone")
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise MissingExtraError("--wandb", "wandb")
        named = named_mirrors()
        if self.wandb and named is not None and "wandb" not in named:
            raise SpecError(
                f"expected {ENVIRONMENT_VARIABLE} with wandb in it for --wandb, got "
                f"{','.join(sorted(named))!r}",
                hint=f"unset {ENVIRONMENT_VARIABLE}, or leave out --wandb",
            )

    @classmethod
    def of(cls, seed: int | None, **others: Any) -> Self:
        """Return options with the given seed, or a random one."""
        return cls(seed=secrets.randbelow(1 << 31) if seed is None else seed, **others)
