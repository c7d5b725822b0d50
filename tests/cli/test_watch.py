"""Version changes of a running server, told as they happen."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from timonel.cli.watch import following


def line(text: str) -> str:
    return f"2026-01-31 10:00:00,123 INFO timonel.serving.manager: {text}\n"


def test_a_watch_tells_of_versions_and_of_nothing_else(tmp_path: Path) -> None:
    log, told, heard = tmp_path / "server.log", [], threading.Event()
    log.write_text(line("Loaded version 1 of model m."))

    def tell(text: str) -> None:
        told.append(text)
        heard.set()

    with following(log, tell):
        assert heard.wait(30)
        with log.open("a") as file:
            file.write(line("Model m batches.") + "  Loaded version 9 of model m.\n")
            file.write(line("Cannot load version 2 of model m: no graph; retrying in 9 s."))
            file.write(line("Unloaded version 1 of model m."))
    assert told == [
        "Loaded version 1 of model m.",
        "Cannot load version 2 of model m: no graph; retrying in 9 s.",
        "Unloaded version 1 of model m.",
    ]


def test_a_watch_takes_no_signal_that_is_for_the_program(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line("Loaded version 1 of model m."))
    masks: list[set[int]] = []
    with following(log, lambda _: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))):
        pass
    assert [mask >= {signal.SIGINT, signal.SIGTERM} for mask in masks] == [True]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM}


def test_a_log_that_is_gone_is_no_error(tmp_path: Path) -> None:
    told: list[str] = []
    with following(tmp_path / "none.log", told.append):
        pass
    assert told == []
