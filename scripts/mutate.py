"""Mutation testing of the decision modules: change code, and check that unit tests fail.

usage: mutate.py [--core NAME] [--count N] [--seed N] [--only ID] [--report [FILE]]

A mutant is one change in one module, such as `<` to `<=`. The tests of its core run in a forked
child, whose parent has imported third-party packages but not timonel, and which imports the mutant.
The mutant is killed if they fail or exceed the time limit. Do not edit the sources meanwhile.

IDs depend on the changed code and its function, not on line numbers. So edits elsewhere change
neither the IDs nor the sample.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from multiprocessing import get_context
from pathlib import Path

from _decisions import CORES, EQUIVALENT, ROOT, Core
from _mutants import Mutant, apply, mutants, sample, shorten

REPORT = "benchmarks/results/mutation.md"
GOAL = 0.85
_WARM = ("hypothesis.stateful", "numpy", "optuna", "psutil", "pyarrow.compute", "pydantic", "yaml")
"""Slow imports of the tests. They start no threads, which a fork would lose."""
_LIMIT_FACTOR, _LIMIT_MARGIN_S = 4, 20
_ALONE_S = 300
"""Time limit of a mutant that runs alone, whose tests have not been timed."""
_MEMORY = 4 * 2**30
"""Memory limit of a test process in bytes, as an endless loop may fill a list."""

_RAN = 64
"""Exit code of a child whose tests passed; pytest's own codes are added to it."""
_FAILURES = (1, 2, 4)
"""pytest's exit codes of failed tests, and of failed imports of tests and of conftest.py."""


class Changed(SourceFileLoader):
    """Finder and loader of one module whose source is a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        path = ROOT / "src/timonel" / mutant.module
        name = ".".join(("timonel", *Path(mutant.module).with_suffix("").parts))
        super().__init__(name, str(path))
        self._text = apply(path.read_text(), mutant)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the changed module, and None for others."""
        return spec_from_loader(name, self) if name == self.name else None

    def get_code(self, _name: str) -> object:
        """Compile the changed source; cached bytecode is that of the original."""
        return compile(self._text, self.path, "exec", dont_inherit=True)


def all_mutants(core: Core) -> list[Mutant]:
    """Return all mutants of a core."""
    return [
        mutant
        for module in core.modules
        for mutant in mutants((ROOT / "src/timonel" / module.partition(":")[0]).read_text(), module)
    ]


def passes(
    core: Core, log: Path, mutant: Mutant | None = None, limit_s: float | None = None
) -> bool:
    """Run the tests of a core; False if one fails or the time limit is exceeded.

    Args:
        core: The core.
        log: File that gets the output.
        mutant: Change to apply; its module's own tests run first.
        limit_s: Time limit in seconds.

    Raises:
        RuntimeError: The tests could not run.
    """
    child = get_context("fork").Process(target=_run, args=(core, log, mutant), daemon=True)
    child.start()
    child.join(limit_s)
    if child.is_alive():
        child.kill()
        child.join()
        return False
    status = (child.exitcode or 0) - _RAN
    if status not in {0, *_FAILURES}:
        raise RuntimeError(f"Tests of {core.name} did not run:\n{log.read_text()}")
    return status == 0


def _run(core: Core, log: Path, mutant: Mutant | None) -> None:
    """Run the tests in a forked child."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(ROOT)
    if mutant is not None:
        sys.meta_path.insert(0, Changed(mutant))
    arguments = ["-x", "-q", "-m", "not (process or slow)", "--hypothesis-profile", "quick"]
    arguments += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before the fork
    own = f"test_{Path(mutant.module).name}" if mutant else ""
    tests = sorted(core.tests, key=lambda path: Path(path).name != own)
    status = int(importlib.import_module("pytest").main([*arguments, *tests]))
    sys.stdout.flush()
    os._exit(_RAN + status)  # the tests may have left threads


def _warm_up() -> None:
    """Import third-party packages, and end property tests at the first failure."""
    for name in _WARM:
        importlib.import_module(name)
    hypothesis = importlib.import_module("hypothesis")
    # The profiles of tests/conftest.py inherit from it.
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutation")


@dataclass(frozen=True)
class Result:
    """Mutants of a core by outcome, and the time of all runs in seconds."""

    core: Core
    killed: tuple[Mutant, ...]
    survived: tuple[Mutant, ...]
    equivalent: tuple[Mutant, ...]
    took_s: float

    @property
    def ratio(self) -> float:
        """Share of killed mutants, without equivalent ones."""
        return len(self.killed) / max(1, len(self.killed) + len(self.survived))

    def __str__(self) -> str:
        known = len(self.killed) + len(self.survived)
        return (
            f"{self.core.name}: {len(self.killed)} of {known} killed ({self.ratio:.0%}), "
            f"{len(self.equivalent)} equivalent, {self.took_s:.0f} s"
        )


def measure(core: Core, log: Path, seed: int, count: int) -> Result:
    """Run the tests of a core for each mutant of a sample.

    Raises:
        RuntimeError: The tests fail without a change.
    """
    started = time.monotonic()
    if not passes(core, log):
        raise RuntimeError(f"Tests of {core.name} fail:\n{log.read_text()}")
    limit_s = _LIMIT_FACTOR * (time.monotonic() - started) + _LIMIT_MARGIN_S
    outcomes: dict[str, list[Mutant]] = {"killed": [], "survived": [], "equivalent": []}
    for mutant in sample(all_mutants(core), seed, count):
        survives = passes(core, log, mutant, limit_s)
        outcome = "killed" if not survives else "survived"
        if survives and mutant.id in EQUIVALENT:
            outcome = "equivalent"
        outcomes[outcome].append(mutant)
        print(f"{outcome:10}  {mutant}", flush=True)
    took_s = time.monotonic() - started
    return Result(core, *(tuple(each) for each in outcomes.values()), took_s=took_s)


def report(results: Sequence[Result], seed: int, count: int) -> str:
    """Return the page with all results."""
    names = "".join(
        f"| {each.core.name} | {len(each.killed)} | {len(each.survived)} | "
        f"{len(each.equivalent)} | {each.ratio:.0%} | {each.took_s:.0f} s |\n"
        for each in results
    )
    survived = [mutant for each in results for mutant in each.survived]
    equivalent = [mutant for each in results for mutant in each.equivalent]
    return (
        "# Mutation tests\n\n"
        f"Computed {time.strftime('%Y-%m-%d')} at commit {_commit()} with seed {seed}.\n\n"
        f"Each core has {count} random mutants: small changes of its modules, such as `<` to `<=`. "
        "A mutant is killed if a test that `make test` runs fails. Equivalent mutants behave like "
        "the original and do not count. `scripts/mutate.py --only ID` runs one mutant.\n\n"
        "| core | killed | survived | equivalent | share killed | time |\n"
        "|---|---|---|---|---|---|\n"
        f"{names}\n"
        "## Survivors\n\n"
        f"{_table(survived, {}) or 'None.'}\n\n"
        "## Equivalent mutants\n\n"
        f"{_table(equivalent, EQUIVALENT) or 'None.'}\n"
    )


def _table(found: Sequence[Mutant], reasons: Mapping[str, str]) -> str:
    if not found:
        return ""
    columns = ["ID", "place", "before", "after", *(["reason"] if reasons else [])]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for each in found:
        place = f"{each.module}:{each.line}"
        codes = (
            f"`{shorten(code).replace('|', chr(92) + '|')}`" for code in (each.before, each.after)
        )
        cells = [each.id, place, *codes, *([reasons[each.id]] if reasons else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _run_one(mutant_id: str, log: Path) -> int:
    for core in CORES:
        for mutant in all_mutants(core):
            if mutant.id == mutant_id:
                survives = passes(core, log, mutant, _ALONE_S)
                print(log.read_text())
                print(f"{'survived' if survives else 'killed'}  {mutant}")
                return 0
    print(f"No mutant has the ID {mutant_id}. Its code may have changed.")
    return 1


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants; the exit code is 1 if a core misses the goal."""
    parser = argparse.ArgumentParser(description="Test whether unit tests detect small changes.")
    parser.add_argument("--core", choices=[each.name for each in CORES], help="only this core")
    parser.add_argument("--count", type=_positive, default=30, help="mutants per core (30)")
    parser.add_argument("--seed", type=int, default=0, help="choose other mutants (0)")
    parser.add_argument("--only", metavar="ID", help="run one mutant and show the tests' output")
    parser.add_argument(
        "--report", nargs="?", const=REPORT, metavar="FILE", help=f"write results ({REPORT})"
    )
    options = parser.parse_args(arguments)
    if options.report and options.core:
        parser.error("--report needs all cores")
    _warm_up()
    with tempfile.NamedTemporaryFile(prefix="mutants-", suffix=".log") as file:
        log = Path(file.name)
        if options.only:
            return _run_one(options.only, log)
        known = {mutant.id for core in CORES for mutant in all_mutants(core)}
        for outdated in sorted(EQUIVALENT.keys() - known):
            print(f"EQUIVALENT has the ID {outdated}, but its code has changed. Remove it.")
        results = []
        for core in CORES:
            if options.core in {None, core.name}:
                results.append(measure(core, log, options.seed, options.count))
                print(results[-1], flush=True)
    if options.report:
        (ROOT / options.report).write_text(report(results, options.seed, options.count))
    return int(any(each.ratio < GOAL for each in results))


if __name__ == "__main__":
    sys.exit(main())
