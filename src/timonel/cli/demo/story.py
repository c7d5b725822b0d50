"""Steps of the demo."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel.cli.demo.load import LoadGenerator
from timonel.cli.demo.report import DemoResult, print_report
from timonel.cli.demo.shell import Shell
from timonel.cli.project import DIGITS
from timonel.cli.watch import read_states
from timonel.errors import AlreadyExistsError, InputError, ServingError

if TYPE_CHECKING:
    from rich.console import Console

    from timonel.serving import ServerRecord
    from timonel.storage import Workspace

MARKER = ".timonel-demo"
NAME = "digits"
DATASET = "data/digits"
TRAIN = f"timonel train train.py --data {DATASET}"
EXPORT = f"timonel export --name {NAME}"
_READY_S = 120.0
_SWITCH_S = 60.0
_HELD_OUT = 40


def run_demo(folder: Path, out: Console) -> None:
    """Run the whole demo in ``folder``.

    Args:
        folder: The working folder; an earlier demo there is continued.
        out: The console.

    Raises:
        AlreadyExistsError: The folder contains other files.
        TimonelError: A step failed.
    """
    started = time.monotonic()
    _enter(folder, out)
    os.environ.pop("TIMONEL_WORKSPACE", None)
    shell = Shell(folder, out)
    with _ending_with(shell):
        _prepare(shell)
        shell.run(TRAIN, step="train")
        shell.run(EXPORT, step="export")
        workspace = _workspace(folder)
        server = _serve(shell, workspace)
        _ask(shell, server)
        stats, change = _switch(shell, workspace, server)
        shell.run(f"timonel lineage {NAME}/{change[0]}", step="lineage")
        result = DemoResult(folder, workspace, NAME, TRAIN, stats, change, dict(shell.took_s))
    print_report(result, out, time.monotonic() - started)


def _enter(folder: Path, out: Console) -> None:
    """Create the demo's folder, or continue in an earlier demo's folder."""
    if folder.exists() and not folder.is_dir():
        raise AlreadyExistsError(
            f"{folder} is a file, not a folder", hint="choose another with --folder"
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise AlreadyExistsError(
            f"{folder} contains files that are not of an earlier demo",
            hint="choose another with --folder",
        )
    again = (folder / MARKER).exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).touch()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}", hint="choose another with --folder"
        ) from error
    verb = "continuing in" if again else "working in"
    out.print(
        f"{verb} [bold]{folder}[/]: {DIGITS} real handwritten digits, from files to an endpoint\n"
    )
    shell = Shell(folder, out)
    shell.prompt(f"cd {folder}")


@contextmanager
def _ending_with(shell: Shell) -> Iterator[None]:
    """Stop all commands when the demo ends, also on Ctrl-C or SIGTERM."""
    before: dict[signal.Signals, Any] = {}

    def leave(number: int, frame: Any) -> None:
        # Set first, because background commands may have received the signal too and print.
        shell.is_closing = True
        known = before[signal.Signals(number)]
        if callable(known):
            known(number, frame)
        else:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.getsignal(number)
            signal.signal(number, leave)
    try:
        yield
    finally:
        shell.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(shell: Shell) -> None:
    if not (shell.folder / "train.py").exists():
        shell.run("timonel init image .", step="init")
    if not (shell.folder / DATASET / "manifest.json").exists():
        shell.run(f"timonel convert digits/ {DATASET}", step="convert")


def _workspace(folder: Path) -> Workspace:
    from timonel.storage import find_workspace

    return find_workspace(folder / ".timonel", create=False)


def _serve(shell: Shell, workspace: Workspace) -> ServerRecord:
    """Start the server in the background and wait until it answers."""
    from timonel.cli.doctor.machine import is_free

    free = is_free(8501) and is_free(8500)
    line = f"timonel serve {NAME}" + ("" if free else " --rest-port 0 --grpc-port 0")
    started = time.monotonic()
    child = shell.background(
        line, lambda text: shell.out.print(f"  {text}", style="dim", markup=False, soft_wrap=True)
    )
    deadline = started + _READY_S
    while (record := _record(workspace, child.pid)) is None:
        if child.poll() is not None or time.monotonic() > deadline:
            raise ServingError(
                f"'{line}' did not answer within {_READY_S:g} s",
                hint="its output is above",
            )
        time.sleep(0.1)
    time.sleep(0.5)  # its announcement is still in the pipe
    shell.took_s["serve"] = time.monotonic() - started
    shell.out.print()
    return record


def _record(workspace: Workspace, started_by: int) -> ServerRecord | None:
    import psutil

    from timonel.serving import running_servers

    for record in running_servers(workspace.servers):
        try:
            if psutil.Process(record.pid).ppid() == started_by:
                return record
        except psutil.NoSuchProcess:
            continue
    return None


def _ask(shell: Shell, server: ServerRecord) -> None:
    """Send requests with the command line and curl for a held-out image."""
    from timonel.serving import curl_example

    image = held_out(shell.folder)[0].relative_to(shell.folder)
    shell.run(f"timonel predict {NAME} {image}", step="predict")
    line = curl_example(server.rest_url, NAME, image=str(image))
    if shutil.which("curl") is not None:
        shell.run(line, step="curl")
    else:
        shell.prompt(line)
        shell.out.print("not run: curl is not installed here\n", style="dim")


def _switch(shell: Shell, workspace: Workspace, server: ServerRecord) -> tuple[Any, Any]:
    """Train and export again, then roll back, while clients send requests."""
    before = max(read_states(server.rest_url, NAME))
    image = held_out(shell.folder)[1].relative_to(shell.folder)
    shell.out.print("[bold]Once more, while clients send requests to the running server[/]\n")
    with LoadGenerator(server.rest_url, NAME, held_out(shell.folder)) as load:
        shell.run(f"{TRAIN} --set epochs=15", step="train")
        shell.run(EXPORT, step="export")
        newest = _newest(workspace)
        _expect(load, newest)
        shell.run(f"timonel predict {NAME} {image}", step="predict")
        shell.run(f"timonel models delete {NAME}/{newest} --yes", step="roll back")
        _expect(load, before)
        load.stop()
    return load.stats, (before, newest)


def _expect(load: LoadGenerator, version: int) -> None:
    if not load.wait_for_version(version, _SWITCH_S):
        raise ServingError(
            f"the server did not switch to version {version} within {_SWITCH_S:g} s",
            hint="see 'timonel servers' for its log",
        )


def _newest(workspace: Workspace) -> int:
    from timonel.models import ModelRepository

    return ModelRepository(workspace.models).get(NAME).number


def held_out(folder: Path) -> list[Path]:
    """Return image files of the test split, not used in training."""
    from timonel.data import Dataset

    dataset = Dataset.open(folder / DATASET)
    keys = [example["key"] for example in dataset.examples("test")][:_HELD_OUT]
    return [Path(dataset.manifest.source.uri, key) for key in keys]
