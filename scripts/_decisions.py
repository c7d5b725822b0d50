"""The decision modules that `mutate` changes, and the tests that should fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Core:
    """Decision modules and their unit tests.

    Attributes:
        name: Name of the core.
        modules: Files in ``src/timonel``; ``FILE:CLASS`` mutates one class only.
        more_tests: Test files beside those that mirror the modules. None starts a process.
    """

    name: str
    modules: tuple[str, ...]
    more_tests: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """Test files: ``tests/data/test_schema.py`` for ``data/schema.py``, and others."""
        files = (Path("tests", each.partition(":")[0]) for each in self.modules)
        mirrors = (path.with_name(f"test_{path.name}") for path in files)
        return (*(str(path) for path in mirrors if (ROOT / path).exists()), *self.more_tests)


CORES = (
    Core(
        "job coordination",
        (
            "engines/coordination/coordinator.py",
            "engines/coordination/elastic.py",
            "engines/coordination/generations.py",
            "engines/coordination/inplace.py",
            "engines/coordination/lifecycle.py",
            "engines/coordination/rollout.py",
        ),
        ("tests/engines/coordination/test_any_history.py",),
    ),
    Core(
        "restart policy",
        (
            "engines/coordination/failures.py",
            "engines/coordination/restarts.py",
            "processes/backoff.py",
        ),
        ("tests/engines/coordination/test_inplace.py",),
    ),
    Core("version plan", ("serving/manager/plan.py",), ("tests/serving/test_plan_machine.py",)),
    Core(
        "autoscaling",
        (
            "endpoints/autoscaling/policy.py",
            "endpoints/autoscaling/autoscaler.py",
            "endpoints/autoscaling/decisions.py",
            "endpoints/autoscaling/windows.py",
            "endpoints/autoscaling/kpa.py",
            "endpoints/autoscaling/hpa.py",
            "endpoints/autoscaling/forecast.py",
        ),
    ),
    Core(
        "rollout plan",
        (
            "endpoints/rollouts/plan.py",
            "endpoints/rollouts/guards.py",
            "endpoints/rollouts/pairs.py",
            "endpoints/rollouts/counts.py",
            "endpoints/rollouts/sequential.py",
        ),
    ),
    Core(
        "batching queue",
        (
            "serving/batching/merge.py",
            "serving/batching/policy.py",
            "serving/batching/queue.py",
        ),
        ("tests/serving/batching/test_scheduled_model.py",),
    ),
    Core("cluster", ("training/cluster.py",)),
    Core(
        "schema",
        ("data/schema.py", "data/sources/columns.py", "data/given_schema.py"),
        ("tests/data/sources/kinds/test_kinds.py",),
    ),
    Core(
        "search space",
        ("tuning/parameters.py", "tuning/space.py"),
        ("tests/tuning/test_param_text.py",),
    ),
)

EQUIVALENT: Mapping[str, str] = {
    "89e24734": "timers name tasks of the present generation only",
    "85d75459": "ranks only order failures, and 4 is the last one too",
    "6a41e278": "a request computed alone is never merged, whatever its rows",
    "9bc566cb": "a computed batch sets it before anything reads it",
    "e28cc459": "without a change, both branches return the present number",
    "6eacb0fa": "KpaState.begin always sets it",
    "506db2db": "only the type of the number counts",
    "350cb7a0": "one batch in 64 explores either way",
    "6ee77c57": "sizes without measurements are not read",
    "915f1916": "a batch without the request is rebuilt from the same pieces",
    "b7d75bad": "a request that just fits gives one piece either way",
    "80ed910f": "Unix times are far above both values",
}
"""Mutants that behave like the original: the reason by ID."""
