"""What is told of a program that makes no step."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

from tests.waiting import until
from timonel.training.worker.silence import Silence, frame_of, place_of


def test_it_is_told_after_two_minutes_and_seldom_again() -> None:
    silence = Silence(0.0)
    assert silence.is_to_be_told(119, None) is None
    assert silence.is_to_be_told(121, None) == 121
    assert silence.is_to_be_told(1000, None) is None
    assert silence.is_to_be_told(1400, None) == 1400
    assert silence.is_to_be_told(1500, "1") is None
    assert silence.is_to_be_told(1619, "1") is None
    assert silence.is_to_be_told(1620, "1") == 120


def test_the_line_of_the_script_is_named_and_what_it_waits_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("begun.set()\nend.wait()\n")
    names = {"begun": threading.Event(), "end": threading.Event()}
    code = compile(script.read_text(), str(script), "exec")
    thread = threading.Thread(target=exec, args=(code, names))
    thread.start()
    names["begun"].wait()
    try:
        expected = "train.py, line 2, waits for threading (wait)"
        until(lambda: place_of(frame_of(thread.ident)) == expected)
    finally:
        names["end"].set()
        thread.join()
    assert place_of(None) == "the program has not begun"
    assert gc.isenabled()
