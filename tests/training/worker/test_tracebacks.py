from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import InputError
from timonel.training.worker.exit_report import of_exception
from timonel.training.worker.task.script import run_script


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
    assert result.traceback == (
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


def test_a_defect_of_ours_keeps_its_frames() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        run_script(["/there/is/none.py"])
    result = of_exception(caught.value, script="/there/is/none.py", peers=0)
    assert result.traceback is not None
    assert "script.py" in result.traceback
