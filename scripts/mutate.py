"""Mutation testing of the decision modules: change code, and check that unit tests fail.

usage: mutate.py [--core NAME] [--count N] [--seed N] [--only ID] [--report [FILE]]

A mutant is one change in one module, such as `<` to `<=`, in a copy of the sources and tests. The
tests of its core run in a forked child, whose parent has imported third-party packages but not
timonel. The mutant is killed if they fail or exceed the time limit.

IDs depend on the changed code and its function, not on line numbers. So edits elsewhere change
neither the IDs nor the sample.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _cores import CORES, EQUIVALENT, Core
from _mutants import Mutant, chosen, mutants, mutated, shorten

ROOT = Path(__file__).resolve().parents[1]
REPORT = "benchmarks/results/mutation.md"
GOAL = 0.85
_COPIED = ("src/timonel", "tests", "pyproject.toml")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.html", "*.js", "*.wasm.gz")
_WARM = ("hypothesis.stateful", "numpy", "optuna", "psutil", "pyarrow.compute", "pydantic", "yaml")
"""Slow imports of the tests. They start no threads, which a fork would lose."""
_LIMIT_FACTOR, _LIMIT_MARGIN_S = 4, 20
_MEMORY = 4 * 2**30
"""Memory limit of a test process in bytes, as an endless loop may fill a list."""
_MARKERS = "not (process or slow or soak or browser or beam or cluster)"
_EXAMPLES = 20
"""Examples of a property, as in make test."""
_LOST_COPY = 71


class Checkout:
    """Copy of the sources and tests, with one changed module at a time.

    Args:
        folder: Empty folder for the copy and the output of the last tests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        for name in _COPIED:
            source, target = ROOT / name, folder / name
            if source.is_file():
                shutil.copy2(source, target)
            else:
                shutil.copytree(source, target, ignore=_IGNORED)

    def path(self, module: str) -> Path:
        """Return the path of a module in the copy."""
        return self.folder / "src/timonel" / module

    def mutants(self, core: Core) -> list[Mutant]:
        """Return all mutants of a core."""
        return [
            mutant
            for module, file in zip(core.modules, core.files, strict=True)
            for mutant in mutants(self.path(file).read_text(), module)
        ]

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Apply the change of a mutant, and undo it at the end."""
        path = self.path(mutant.module)
        text = path.read_text()
        # Python compares only sizes and whole seconds with those of the compiled original.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(mutated(text, mutant))
        try:
            yield
        finally:
            path.write_text(text)

    def passes(self, core: Core, file: str = "", limit_s: float | None = None) -> bool:
        """Run the tests of a core; False if one fails or the time limit is exceeded.

        Args:
            core: The core.
            file: The changed file, whose own tests run first.
            limit_s: Time limit in seconds.

        Raises:
            RuntimeError: The tests did not run with the modules of the copy.
        """
        pid = os.fork()
        if pid == 0:
            self._run(core, file)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child may not have done it yet
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)
            os.killpg(pid, signal.SIGKILL)  # and processes that the tests left
            _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == _LOST_COPY:
            raise RuntimeError(f"The tests of {core.name} do not import the copy of its modules.")
        return status == 0

    def _run(self, core: Core, file: str) -> None:
        """Run the tests in a forked child; never returns."""
        status = 1
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            with self.log.open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.chdir(self.folder)
            sys.dont_write_bytecode = bool(file)
            sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            status = int(importlib.import_module("pytest").main(_pytest_arguments(core, file)))
            if status == 0 and not self._has_imported(core):
                status = _LOST_COPY
        except Exception:  # noqa: BLE001 - the child must not return
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _has_imported(self, core: Core) -> bool:
        loaded = {getattr(each, "__file__", None) for each in list(sys.modules.values())}
        return all(str(self.path(each)) in loaded for each in core.files)


def _pytest_arguments(core: Core, file: str) -> list[str]:
    arguments = ["-x", "-q", "-m", _MARKERS, "-p", "no:cacheprovider", "-p", "no:randomly"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before the fork
    tests = sorted(core.tests, key=lambda path: Path(path).name != f"test_{Path(file).name}")
    return [*arguments, *(f"tests/{each}" for each in tests)]


def _warm_up() -> None:
    """Import third-party packages, and end property tests at the first failure."""
    for name in _WARM:
        importlib.import_module(name)
    hypothesis = importlib.import_module("hypothesis")
    # The profile of tests/conftest.py inherits from it.
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        max_examples=_EXAMPLES,
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


def measure(checkout: Checkout, core: Core, seed: int, count: int) -> Result:
    """Run the tests of a core for each chosen mutant.

    Raises:
        RuntimeError: The tests fail without a change.
    """
    started = time.monotonic()
    if not checkout.passes(core):
        raise RuntimeError(f"Tests of {core.name} fail:\n{checkout.log.read_text()}")
    limit_s = _LIMIT_FACTOR * (time.monotonic() - started) + _LIMIT_MARGIN_S
    outcomes: dict[str, list[Mutant]] = {"killed": [], "survived": [], "equivalent": []}
    for mutant in chosen(checkout.mutants(core), seed, count):
        with checkout.changed(mutant):
            survives = checkout.passes(core, mutant.module, limit_s)
        outcome = "killed" if not survives else "survived"
        if survives and mutant.id in EQUIVALENT:
            outcome = "equivalent"
        outcomes[outcome].append(mutant)
        _say(f"{outcome:10}  {mutant}")
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
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607 - from the PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def _run_one(checkout: Checkout, mutant_id: str) -> int:
    for core in CORES:
        for mutant in checkout.mutants(core):
            if mutant.id == mutant_id:
                with checkout.changed(mutant):
                    survives = checkout.passes(core, mutant.module)
                _say(checkout.log.read_text())
                _say(f"{'survived' if survives else 'killed'}  {mutant}")
                return 0
    _say(f"No mutant has the ID {mutant_id}. Its code may have changed.")
    return 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants; the exit code is 1 if a core misses the goal."""
    parser = argparse.ArgumentParser(description="Test whether unit tests detect small changes.")
    parser.add_argument("--core", choices=[each.name for each in CORES], help="only this core")
    parser.add_argument("--count", type=int, default=30, help="mutants per core (30)")
    parser.add_argument("--seed", type=int, default=0, help="choose other mutants (0)")
    parser.add_argument("--only", metavar="ID", help="run one mutant and show the tests' output")
    parser.add_argument(
        "--report", nargs="?", const=REPORT, metavar="FILE", help=f"write results ({REPORT})"
    )
    options = parser.parse_args(arguments)
    _warm_up()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Checkout(Path(folder).resolve())
        if options.only:
            return _run_one(checkout, options.only)
        known = {mutant.id for core in CORES for mutant in checkout.mutants(core)}
        for outdated in sorted(EQUIVALENT.keys() - known):
            _say(f"EQUIVALENT has the ID {outdated}, but its code has changed. Remove it.")
        results = []
        for core in CORES:
            if options.core in {None, core.name}:
                results.append(measure(checkout, core, options.seed, options.count))
                _say(str(results[-1]))
    if options.report:
        (ROOT / options.report).write_text(report(results, options.seed, options.count))
    return int(any(each.ratio < GOAL for each in results))


if __name__ == "__main__":
    sys.exit(main())
