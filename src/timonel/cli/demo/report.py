"""Final report of the demo: measurements, paths, and commands to try next."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.cli.demo.load import LoadStats
from timonel.cli.render.tables import pairs, table
from timonel.styles import from_here
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from timonel.models import ModelVersion
    from timonel.storage import Workspace


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo.

    Args:
        folder: The demo's folder.
        workspace: Its workspace.
        model: The model's name.
        train: The command that trains the model.
        stats: Observations of the clients.
        change: The previous version, and the one that temporarily replaced it.
        took_s: Duration of each step in seconds.
    """

    folder: Path
    workspace: Workspace
    model: str
    train: str
    stats: LoadStats
    change: tuple[int, int]
    took_s: Mapping[str, float]


def print_report(result: DemoResult, out: Console, total_s: float) -> None:
    """Print the final report of the demo."""
    from timonel.models import ModelRepository

    version = ModelRepository(result.workspace.models).get(result.model)
    write_report(result)
    out.print()
    _print_check(version, result, out)
    _print_clients(result, out)
    out.print("[bold]Time of each step[/]")
    rows = [(name, format_seconds(seconds)) for name, seconds in result.took_s.items()]
    out.print(table(("STEP", "TIME"), [*rows, ("all", format_seconds(total_s))]))
    out.print("\n[bold]Where everything is[/]")
    out.print(pairs(_places(version, result)))
    out.print("\n[bold]What to try next[/]")
    for line in next_lines(result, version.run_id, os.environ.get("PATH", "")):
        out.print(f"  {line}", soft_wrap=True, markup=False)


def _print_check(version: ModelVersion, result: DemoResult, out: Console) -> None:
    check = version.check
    if check is None or check.accuracy is None:
        return
    out.print(
        f"[bold]Held-out accuracy {check.accuracy:.1%}[/] of {version}, "
        f"on {check.examples} raw images not used in training"
    )
    if (picture := confusion_png(version, result.workspace)) is not None:
        out.print(f"confusion matrix: {from_here(picture)}", soft_wrap=True, style="dim")
    out.print()


def _print_clients(result: DemoResult, out: Console) -> None:
    stats = result.stats
    before, after = result.change
    failed = len(stats.failures)
    style = "green" if failed == 0 else "bold red"
    out.print(
        f"[bold]{stats.requests:,} requests[/] while version {after} was published and deleted, "
        f"[{style}]{failed} failed[/]; half within {stats.latency_ms(0.5):.0f} ms, "
        f"99% within {stats.latency_ms(0.99):.0f} ms"
    )
    for failure in stats.failures[:3]:
        out.print(f"  {failure}", style="red", markup=False, soft_wrap=True)
    for moment, version in stats.versions:
        clock = time.strftime("%H:%M:%S", time.localtime(moment))
        out.print(f"  {clock}  version {version} serves", style="dim")
    if stats.versions and stats.versions[-1][1] == before:
        out.print(f"  deleting version {after} rolled back to version {before}", style="dim")
    out.print()


def write_report(result: DemoResult) -> Path:
    """Write the measurements to ``demo.json`` in the demo's folder; return its path."""
    stats = result.stats
    value = {
        "took_s": {name: round(seconds, 2) for name, seconds in result.took_s.items()},
        "requests": stats.requests,
        "failed": len(stats.failures),
        "failures": stats.failures[:20],
        "right_labels": stats.right,
        "latency_ms": {"p50": stats.latency_ms(0.5), "p99": stats.latency_ms(0.99)},
        "versions": [{"t": moment, "version": version} for moment, version in stats.versions],
        "asked": [[round(moment, 3), round(1000 * s, 2)] for moment, s in stats.asked],
    }
    path = result.folder / "demo.json"
    path.write_text(json.dumps(value) + "\n")
    return path


def confusion_png(version: ModelVersion, workspace: Workspace) -> Path | None:
    """Return the confusion matrix picture drawn by a version's export, or None."""
    from timonel.tracking import list_runs

    for run in list_runs(workspace, kind="export"):
        if any(item.uri == version.uri for item in run.outputs):
            pictures = [Path(item.uri) for item in run.outputs if item.type == "report"]
            return next((path for path in pictures if path.is_file()), None)
    return None


def _places(version: ModelVersion, result: DemoResult) -> dict[str, str]:
    root = result.workspace.root
    job = version.document.provenance.get("job_id") if version.document else None
    places = {
        "figures": result.folder / "demo.json",
        "raw images": result.folder / "digits",
        "script": result.folder / "train.py",
        "dataset": result.folder / "data" / "digits",
        "logs": root / "jobs" / str(job) / "logs",
        "TensorBoard": root / "jobs" / str(job) / "tensorboard",
        "run records": root / "runs",
        "versions": root / "models" / result.model,
    }
    return {name: from_here(path) for name, path in places.items() if path.exists()}


def next_lines(result: DemoResult, run_id: str | None, path: str) -> list[str]:
    """Return commands to try next, in the order to run them.

    Args:
        result: Results of the demo.
        run_id: The run that made the model's newest version.
        path: ``PATH`` of the user's shell.
    """
    name, patients = result.model, result.folder.parent / "patients"
    lines = [
        (f"cd {shlex.quote(from_here(result.folder))}", ""),
        (f"timonel runs show {run_id or 'last'}", "parameters, metrics and their curves"),
        (f"timonel models show {name}", "what the version takes and gives"),
        (f"timonel serve {name}", "until Ctrl-C"),
        (result.train, "again, after you have edited train.py"),
    ]
    if not patients.exists():
        lines.append(("timonel init table ../patients", "the same path for a CSV file"))
    if importlib.util.find_spec("mlflow") and (result.workspace.root / "mlflow.db").exists():
        lines.append(("mlflow ui --backend-store-uri sqlite:///.timonel/mlflow.db", "the runs"))
    if (found := _activation(path)) is not None:
        lines.insert(0, (found, "finds timonel"))
    wide = max(len(line) for line, _ in lines)
    return [f"{line:<{wide}}  # {remark}" if remark else line for line, remark in lines]


def _activation(path: str) -> str | None:
    """Return the command that puts this installation on the PATH, if needed."""
    scripts = Path(sysconfig.get_path("scripts"))
    found = shutil.which("timonel", path=path)
    if found is not None and Path(found).resolve() == (scripts / "timonel").resolve():
        return None
    if (scripts / "activate").is_file():
        return f". {shlex.quote(from_here(scripts / 'activate'))}"
    return f'PATH={shlex.quote(str(scripts))}:"$PATH"'
