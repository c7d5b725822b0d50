"""The decision modules that `mutate` changes, and the tests that should fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """Decision modules and their unit tests.

    Attributes:
        name: Name of the core.
        modules: Files in ``src/timonel``; ``FILE:CLASS`` mutates one class only.
        tests: Paths in ``tests``, fast ones first. None starts a process.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the modules."""
        return tuple(each.partition(":")[0] for each in self.modules)


def _in(folder: str, names: str) -> tuple[str, ...]:
    """Return paths of Python files, given as names separated by spaces."""
    return tuple(f"{folder}/{name}.py" for name in names.split())


CORES = (
    Core(
        "job coordination",
        _in("engines/coordination", "coordinator elastic generations inplace lifecycle rollout"),
        _in("engines/coordination", "test_rollout test_inplace test_elastic test_coordinator")
        + _in("engines/coordination", "test_any_history"),
    ),
    Core(
        "restart policy",
        (*_in("engines/coordination", "failures restarts"), "processes/backoff.py"),
        _in("engines/coordination", "test_failures test_restarts test_inplace"),
    ),
    Core(
        "version plan",
        ("serving/manager/plan.py",),
        ("serving/manager/test_plan.py", "serving/test_plan_machine.py"),
    ),
    Core(
        "autoscaling",
        _in("endpoints/autoscaling", "autoscaler decisions forecast hpa kpa policy windows"),
        _in("endpoints/autoscaling", "test_policy test_autoscaler test_windows test_kpa test_hpa")
        + _in("endpoints/autoscaling", "test_forecast"),
    ),
    Core(
        "rollout plan",
        _in("endpoints/rollouts", "counts guards pairs plan sequential"),
        _in("endpoints/rollouts", "test_plan test_guards test_pairs test_counts test_sequential"),
    ),
    Core(
        "batching queue",
        (*_in("serving/batching", "merge policy queue"), "serving/batching/batcher.py:Scheduler"),
        _in("serving/batching", "test_merge test_policy test_queue test_batched_model"),
    ),
    Core("cluster", ("training/cluster.py",), ("training/test_cluster.py",)),
    Core(
        "schema",
        _in("data", "given_schema schema sources/columns"),
        _in("data", "test_schema sources/test_columns sources/kinds/test_kinds test_given_schema"),
    ),
    Core(
        "search space",
        _in("tuning", "parameters space"),
        _in("tuning", "test_space test_param_text"),
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
