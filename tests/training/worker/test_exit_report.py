from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorflow.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
)

from tests.training.worker.tracebacks import without_carets
from timonel.engines import EXIT_RETRYABLE, FailureCause
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.training.worker import exit_report
from timonel.training.worker.exit_report import of_exception, write_report
from timonel.training.worker.program import run_script
from timonel.training.worker.termination import Terminated


@pytest.mark.parametrize(
    ("error", "peers", "cause"),
    [
        (UnavailableError(None, None, "Socket closed"), 1, FailureCause.LOST_PEER),
        (UnavailableError(None, None, "Socket closed"), 0, FailureCause.USER_ERROR),
        (InternalError(None, None, "Collective ops is aborted by: x"), 1, FailureCause.LOST_PEER),
        (InternalError(None, None, "assertion failed"), 1, FailureCause.USER_ERROR),
        (CancelledError(None, None, "heartbeat timeout"), 2, FailureCause.LOST_PEER),
        (InvalidArgumentError(None, None, "collective"), 1, FailureCause.USER_ERROR),
        (ResourceExhaustedError(None, None, "OOM when"), 1, FailureCause.OUT_OF_MEMORY),
        (
            ResourceExhaustedError(None, None, "part-0; No space left on device"),
            0,
            FailureCause.USER_ERROR,
        ),
        (MemoryError(), 0, FailureCause.OUT_OF_MEMORY),
        (ConnectionResetError("my own socket"), 1, FailureCause.USER_ERROR),
        (Terminated(), 1, FailureCause.PREEMPTED),
        (KeyboardInterrupt(), 0, FailureCause.USER_ERROR),
    ],
)
def test_whose_fault_it_was(error: BaseException, peers: int, cause: FailureCause) -> None:
    result = of_exception(error, script="/s.py", peers=peers)
    assert result.cause is cause
    retryable = {FailureCause.LOST_PEER, FailureCause.PREEMPTED}
    assert (result.exit_code == EXIT_RETRYABLE) == (cause in retryable)


@pytest.mark.parametrize(
    ("call", "cures"),
    [
        ("keras.optimizers.RMSprop(lr=1e-4)", ("learning_rate=", "TF_USE_LEGACY_KERAS=1")),
        ("keras.Sequential().save('folder')", ("model.keras", "TF_USE_LEGACY_KERAS=1")),
    ],
)
def test_scripts_for_keras_2_are_told_the_cure(
    call: str, cures: tuple[str, ...], tmp_path: Path
) -> None:
    import keras

    with pytest.raises(ValueError) as caught:
        eval(call, {"keras": keras})
    outcome = of_exception(caught.value, script="/s.py", peers=0)
    for cure in cures:
        assert cure in outcome.message
        assert outcome.traceback is not None
        assert cure in outcome.traceback


def test_what_could_not_be_allocated_is_said() -> None:
    error = ResourceExhaustedError(
        None,
        None,
        "Graph execution error:\n\nDetected at node x\nOOM when allocating tensor a\nHint",
    )
    error.add_note("the batch size was 64: try 32")
    assert of_exception(error, script="/s.py", peers=0).message == (
        "ResourceExhaustedError: OOM when allocating tensor a; the batch size was 64: try 32"
    )


def test_an_error_that_wraps_a_lost_peer() -> None:
    error = RuntimeError("training failed")
    error.__cause__ = UnavailableError(None, None, "gone")
    assert of_exception(error, script="/s.py", peers=1).cause is FailureCause.LOST_PEER


def test_an_error_of_ours_that_tensorflow_has_passed_on_as_text() -> None:
    faults = [CorruptError("expected whole records in a"), CorruptError("expected records in b")]
    wrapped = UnknownError(None, None, f"Graph execution error: CorruptError: {faults[1]}\nstack")
    assert exit_report.explained(wrapped, faults) is faults[1]
    result = of_exception(faults[1], script="/s.py", peers=1)
    assert result.cause is FailureCause.USER_ERROR
    assert result.traceback == "expected records in b\n"


def test_an_error_of_ours_explains_no_other() -> None:
    faults = [CorruptError("expected whole records in a")]
    for error in (UnknownError(None, None, "other"), ValueError("expected whole records in a")):
        assert exit_report.explained(error, faults) is error
        assert exit_report.explained(error, []) is error


def test_whatever_is_raised_after_sigterm_is_its_consequence() -> None:
    result = of_exception(ValueError(), script="/s.py", peers=0, terminating=True)
    assert result == exit_report.LEFT


@pytest.mark.parametrize(
    ("code", "exit_code"), [(None, 0), (0, 0), (3, 3), (256, 1), ("went wrong", 1)]
)
def test_a_script_that_exits(code: object, exit_code: int) -> None:
    result = of_exception(SystemExit(code), script="/s.py", peers=0)
    assert result.exit_code == exit_code
    if exit_code:
        assert result.cause is FailureCause.USER_ERROR
    assert result.traceback == ("went wrong\n" if code == "went wrong" else None)


def test_what_the_engine_is_told(tmp_path: Path) -> None:
    write_report(tmp_path, exit_report.DONE)
    assert not (tmp_path / "report.json").exists()
    write_report(tmp_path, exit_report.LEFT)
    assert json.loads((tmp_path / "report.json").read_text()) == {
        "cause": "preempted",
        "message": "stopped by SIGTERM",
        "traceback": None,
    }


@pytest.mark.parametrize(
    "error",
    [
        ValueError("DistributedVariable.handle is not available outside the replica context or a"),
        AttributeError("'NoneType' object has no attribute 'merge_call'"),
    ],
)
def test_a_step_outside_the_strategy_is_told_with_its_cure(error):
    found = exit_report.explained(error, [])
    assert isinstance(found, SpecError)
    assert "strategy.run(step" in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("text", "is_served", "words"),
    [
        ("'NoneType' object has no attribute 'merge_call'", False, "experimental_distribute_data"),
        ("'NoneType' object has no attribute 'merge_call'", True, "coordinator.schedule"),
        (
            "You must feed a value for placeholder tensor 'cond/x' [Op:__inference_fn_with_cond_2]",
            False,
            "optimizer.build",
        ),
    ],
)
def test_the_cure_of_a_loop_of_ones_own_is_named(text: str, is_served: bool, words: str) -> None:
    told = exit_report.explained(RuntimeError(text), (), is_served=is_served)
    assert isinstance(told, SpecError)
    assert words in str(told)


def test_an_error_of_ours_below_the_scripts_call_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from timonel.training.worker.fit.checkpoints import Checkpoints, FitState, Progress\n"
        "place = Path('/dev/null/checkpoints')\n"
        "saved = Checkpoints(place, writes=True, progress=Path('/dev/null'))\n"
        "saved.save(0, FitState(Progress((0,), {'loss': (1.0,)}, 1)))\nsaved.wait()\n"
    )
    with pytest.raises(InputError) as caught:
        run_script([str(script)])
    result = of_exception(caught.value, script=str(script), peers=0)
    assert result.traceback is not None
    assert result.traceback.startswith("cannot write /dev/null/checkpoints/")
    assert len(result.traceback.splitlines()) == 1


@pytest.fixture
def raised(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Run a script that is given as text and return it with what it raised."""
    import sys

    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "user.py"
    script.write_text(request.param)
    with pytest.raises(BaseException) as caught:
        run_script([str(script)])
    return str(script), caught.value


@pytest.mark.parametrize(
    "raised", ["def inner():\n    raise ValueError('mine')\n\ninner()\n"], indirect=True
)
def test_the_traceback_is_the_users_own(raised: tuple[str, BaseException]) -> None:
    script, error = raised
    result = of_exception(error, script=script, peers=0)
    assert result.message == "ValueError: mine"
    assert without_carets(result.traceback) == (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 4, in <module>\n'
        "    inner()\n"
        f'  File "{script}", line 2, in inner\n'
        "    raise ValueError('mine')\n"
        "ValueError: mine\n"
    )


@pytest.mark.parametrize("raised", ["x = = 1\n"], indirect=True)
def test_a_mistake_in_the_syntax(raised: tuple[str, BaseException]) -> None:
    script, error = raised
    result = of_exception(error, script=script, peers=0)
    assert result.message == "SyntaxError: invalid syntax"
    assert result.traceback is not None
    assert result.traceback.startswith(f'  File "{script}", line 1')
    assert "timonel" not in result.traceback.replace(script, "")


def test_an_error_of_ours_that_explains_itself() -> None:
    error = InputError("expected a, got b", hint="do c")
    result = of_exception(error, script="/s.py", peers=0)
    assert result.traceback == "expected a, got b: do c\n"


def test_a_script_that_does_not_exist_is_reported_in_one_line() -> None:
    with pytest.raises(NotFoundError) as caught:
        run_script(["/there/is/none.py"])
    result = of_exception(caught.value, script="/there/is/none.py", peers=0)
    line = "No script /there/is/none.py in the image or on the machine of the task"
    assert (result.message, result.traceback) == (line, f"{line}\n")


def test_a_defect_of_ours_keeps_its_frames(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        run_script([str(tmp_path)])
    result = of_exception(caught.value, script=str(tmp_path), peers=0)
    assert result.traceback is not None
    assert "program.py" in result.traceback
