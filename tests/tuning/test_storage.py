"""Studies in databases and journals, and storages that go away."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from tests.tuning.conftest import SCRIPT
from tests.tuning.databases import MySQL, PostgreSQL, Server
from timonel.cli.render.studies import STUDY
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    DataError,
    MissingExtraError,
    NotFoundError,
    SpecError,
)
from timonel.storage import Workspace, find_workspace
from timonel.tuning import list_studies, open_study, resume, storage, tune
from timonel.tuning.storage import open_storage

X = "x=float(0,1)"


def study(workspace: Workspace, name: str, *space: str, **options: Any) -> Any:
    options = {"algorithm": "random", "seed": 1, "metric": "score", **options}
    return tune(SCRIPT, list(space or (X,)), study=name, workspace=workspace, **options)


@pytest.fixture(scope="module", params=[PostgreSQL, MySQL])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A database server with an empty database."""
    kind: Any = request.param
    if not kind.is_installed():
        pytest.skip(f"this machine has no server of {kind.__name__}")
    # Unlike pytest's folders, other users may look into this one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        made = kind(Path(place, "server"))
        yield made
        made.kill()


@pytest.fixture(autouse=True)
def _password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the test's server is in a home folder."""
    (tmp_path / ".my.cnf").write_text(f"[client]\npassword={MySQL.password}\n")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_database_that_goes_away_ends_a_study_that_resume_finishes(
    workspace: Workspace, server: Server, tmp_path: Path
) -> None:
    name = f"away-{type(server).__name__}"

    def kill_at_the_second_trial(event: str, trial: int, _: object) -> None:
        if event == "started" and trial == 1:
            threading.Thread(target=server.kill).start()

    with pytest.raises(DataError, match=f"storage of the study {name} failed") as caught:
        study(
            workspace, name, X, "pause=1.5",
            trials=4, parallel=2, storage=server.url, notify=kill_at_the_second_trial,
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    assert f"timonel studies resume {name}" in (caught.value.hint or "")
    with pytest.raises(DataError, match="cannot be used: "):
        _ = open_study(workspace, name).trials
    server.start()
    left = [trial for trial in open_study(workspace, name).trials if trial.run_id]
    found = resume(name, workspace=workspace)
    assert [trial.status for trial in found.trials] == ["succeeded"] * 4
    assert [trial.run_id for trial in found.trials[: len(left)]] == [t.run_id for t in left]
    assert found.best_run.id == max(found.trials, key=lambda trial: trial.values).run_id
    with pytest.raises(AlreadyExistsError, match="which another workspace may own"):
        study(find_workspace(tmp_path / "other"), name, trials=1, storage=server.url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://me:secret@host/db", "contains a password"),
        ("oracle://me@host/db", "a database of postgresql or mysql, got 'oracle'"),
        ("nonsense", "is not a URL"),
        ("sqlite:///file", "a database of postgresql or mysql"),
        ("postgresql://me@host/db?password=secret", "contains a password"),
        ("mysql://me@host/db?passwd=secret", "contains a password"),
        ("postgresql://me@host:port/db", "is not a URL"),
        ("mysql://me@127.0.0.1:1/db?tls=yes", "unexpected keyword argument 'tls'"),
    ],
)
def test_urls_that_no_study_can_use(url: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        open_storage(url, tmp_path)
    assert "secret" not in str(caught.value)


def test_a_database_that_cannot_be_reached(workspace: Workspace) -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:1/db cannot be used: .*refused"):
        study(workspace, "unreached", trials=1, storage="postgresql://me@127.0.0.1:1/db")
    with pytest.raises(NotFoundError):
        open_study(workspace, "unreached")


def test_a_driver_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"postgresql.*needs the extra 'postgresql'"):
        open_storage("postgresql://me@127.0.0.1:1/db", tmp_path)


def test_a_server_that_accepts_but_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, extra, arguments = storage._DRIVERS["mysql"]
    assert arguments["read_timeout"] == 60
    shorter = (driver, extra, {**arguments, "read_timeout": 1})
    monkeypatch.setitem(storage._DRIVERS, "mysql", shorter)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        with pytest.raises(DataError, match="timed out"):
            open_storage(url, tmp_path)


def test_the_lock_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    created = optuna.create_study(study_name="s", storage=open_storage(None, tmp_path))
    Path(f"{journal}.lock").symlink_to(journal)
    began = time.monotonic()
    storage.repair_journal(tmp_path)
    created.ask()
    assert time.monotonic() - began < 10, "Optuna would wait 30 s"


@pytest.mark.process
@pytest.mark.timeout(300)
def test_unreadable_studies_do_not_hide_the_others(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    study(workspace, "readable", trials=1)
    study(workspace, "down", trials=1)
    settings = workspace.studies / "down" / "study.json"
    url = '"storage": "postgresql://me@127.0.0.1:1/db"'
    settings.write_text(settings.read_text().replace('"storage": null', url))
    (workspace.studies / "damaged").mkdir()
    (workspace.studies / "damaged" / "study.json").write_text("{")
    found = list_studies(workspace)
    assert {"readable", "down"} <= {each.name for each in found}
    assert "damaged" in caplog.text
    screen = Console(file=io.StringIO(), width=400)
    screen.print(STUDY.table(found))
    rows = {line.split()[0]: line.split()[1:] for line in screen.file.getvalue().splitlines()}
    assert rows["readable"][:3] == ["ended", "1/1", "score"]
    assert rows["down"][0] == "unreachable"
    assert "refused" in " ".join(rows["down"])
    (down,) = [each for each in map(STUDY.entry, found) if each["name"] == "down"]
    assert down["state"] == "unreachable"
    assert "refused" in down["message"]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_journals_that_are_damaged_or_gone(workspace: Workspace) -> None:
    found = study(workspace, "journal", trials=1)
    journal = found.folder / "journal.log"
    whole = journal.read_bytes()
    # A controller that was killed while it wrote leaves half a line, which resume removes.
    journal.write_bytes(whole + b'{"op_code": 4, "wor')
    lock = found.folder / "journal.log.lock"
    lock.symlink_to(journal)
    os.utime(lock, (0, 0), follow_symlinks=False)
    assert len(open_study(workspace, "journal").trials) == 1
    assert len(resume("journal", trials=2, workspace=workspace).trials) == 2
    assert not lock.is_symlink(), "a killed process held it"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], lines[1][:10] + b"\n", *lines[2:]]))
    with pytest.raises(CorruptError, match=r"journal\.log is damaged"):
        _ = open_study(workspace, "journal").trials
    journal.unlink()
    with pytest.raises(NotFoundError, match="the storage of the study journal no longer has it"):
        _ = open_study(workspace, "journal").trials
