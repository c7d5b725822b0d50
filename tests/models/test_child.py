"""The process beside this one, with a module that needs no TensorFlow."""

import json
from pathlib import Path

import psutil
import pytest
from pydantic import BaseModel

from timonel.errors import (
    CorruptError,
    DataError,
    FormatError,
    ModelError,
    NotFoundError,
    SpecError,
)
from timonel.models.child import ChildProcess

pytestmark = pytest.mark.process

MODULE = """
import os, signal, sys, threading
from pydantic import BaseModel
from timonel.errors import SpecError
from timonel.models.child import answer_request, end_with_parent

class Echo(BaseModel):
    text: str

def work(request):
    if request.text == "stay":
        threading.Event().wait()
    if request.text == "die":
        print("out of memory", end="\\n \\n", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if request.text == "fail":
        raise SpecError("no such thing", hint="name another")
    return Echo(text=request.text.upper())

end_with_parent()
sys.exit(answer_request(sys.argv[1:], Echo, work))
"""
WAIT_S = 60


class Echo(BaseModel):
    text: str


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "echoing.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda text: ChildProcess("echoing", Echo(text=text), tmp_path, tmp_path / "log")


def test_it_answers(start):
    with start("go") as child:
        assert child.answer(WAIT_S) == {"text": "GO"}


def test_its_error_is_raised_here(start, tmp_path: Path):
    with start("fail") as child, pytest.raises(SpecError, match="no such thing: name another"):
        child.answer(WAIT_S)
    assert "Traceback" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("kind", [CorruptError, DataError, FormatError, NotFoundError])
def test_the_exit_code_of_an_error_is_kept(tmp_path: Path, start, kind):
    with start("go") as child:
        child.answer(WAIT_S)
        answer = {"error": "no", "hint": None, "kind": kind.__name__}
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        with pytest.raises(kind) as raised:
            child.answer(WAIT_S)
        assert raised.value.exit_code == kind.exit_code


def test_an_error_of_another_kind_is_the_models(tmp_path: Path, start):
    with start("go") as child:
        child.answer(WAIT_S)
        (tmp_path / "answer.json").write_text(
            '{"error": "no", "hint": null, "kind": "EngineError"}'
        )
        with pytest.raises(ModelError, match="no"):
            child.answer(WAIT_S)


def test_a_process_that_dies_has_no_answer(start):
    with start("die") as child:
        assert child.answer(WAIT_S) is None
        assert child.end_reason() == "code -9: out of memory"


def test_a_process_that_writes_nothing(start, tmp_path: Path):
    with start("go") as child:
        child.answer(WAIT_S)
        (tmp_path / "log").write_text("\n \nI0000 00:00:1.5 7 port.cc:153] oneDNN is on.\n")
        assert child.end_reason() == "code 0: no output"


def test_it_ends_with_the_block(start):
    known = set(psutil.Process().children())
    with start("stay") as child:
        (process,) = set(psutil.Process().children()) - known
        with pytest.raises(TimeoutError):
            child.answer(0.1)
    assert not process.is_running()


def test_it_ends_when_its_standard_input_closes(start):
    known = set(psutil.Process().children())
    with start("stay") as child:
        (process,) = set(psutil.Process().children()) - known
        child._process.stdin.close()
        assert child.answer(WAIT_S) is None
        assert child.end_reason().startswith("code 1")
    assert not process.is_running()
