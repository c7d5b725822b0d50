"""The program as a whole: help, global options, errors as one line, lazy imports."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

from tests.cli.conftest import Timonel
from tests.docs.command_lines import parse
from timonel.cli import main as main_module
from timonel.cli.catalogue import ENTRIES
from timonel.cli.daily import DAILY, EXAMPLES, MOST
from timonel.errors import InputError, Interrupted, ModelError, UserCodeError
from timonel.storage import find_workspace

HEAVY = (
    "tensorflow",
    "keras",
    "numpy",
    "pyarrow",
    "PIL",
    "sklearn",
    "matplotlib",
    "grpc",
    "mlflow",
)


def modules_after(code: str, folder: Path) -> set[str]:
    """Return the modules that a fresh process has loaded after ``code``."""
    script = f"import sys, json\n{code}\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.process
def test_help_imports_nothing_but_the_parser(tmp_path: Path) -> None:
    loaded = modules_after("from timonel.cli.main import run; run(['--help'])", tmp_path)
    assert not loaded.intersection(HEAVY)
    assert not loaded.intersection({"pydantic", "rich.console", "asyncio", "fsspec"})
    mine = {name for name in loaded if name.startswith("timonel.cli.commands.")}
    assert mine == set()


@pytest.mark.process
def test_a_listing_loads_no_tensorflow_nor_what_comes_with_it(here: Path) -> None:
    from timonel.storage import find_workspace
    from timonel.tracking import start_run

    with start_run(find_workspace(here / ".timonel"), "convert"):
        pass
    loaded = modules_after("from timonel.cli.main import run; run(['runs'])", here)
    assert "timonel.tracking" in loaded
    assert not loaded.intersection(HEAVY)


def test_help_lists_every_command_in_sections(timonel: Timonel) -> None:
    outcome = timonel("--help")
    assert outcome.exit_code == 0
    for entry in ENTRIES:
        assert f"  {entry.name} " in outcome.out
    assert timonel().out == outcome.out
    assert "\x1b[" not in outcome.out


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_catalogue_says_what_the_command_says(entry, timonel: Timonel) -> None:
    group = typer.main.get_command(main_module.app)
    command = group.get_command(typer.Context(group), entry.name)
    assert command is not None
    assert command.help.splitlines()[0] == entry.line
    assert timonel(entry.name, "--help").exit_code == 0


def every_command():
    """Return each command that runs something, by its path."""
    group = typer.main.get_command(main_module.app)
    return {" ".join(path): command for path, command in leaves(group, typer.Context(group))}


def test_help_shows_an_example_and_at_most_the_daily_options(timonel: Timonel) -> None:
    commands = every_command()
    assert set(EXAMPLES) == set(commands)
    for path, command in commands.items():
        flags = {word for param in command.params for word in param.opts if word.startswith("--")}
        out = timonel(*path.split(), "--help").out
        shown = set(re.findall(r"--[a-z][a-z-]*", out.partition("Example:")[0])) & flags
        assert len(shown) <= MOST, path
        assert f"Example:\n  {EXAMPLES[path]}\n" in out
        everything = timonel(*path.split(), "--help-all").out
        assert all(flag in everything for flag in flags), path
        assert ("--help-all' shows" in out) == (path in DAILY), path


@pytest.mark.parametrize("path", DAILY)
def test_daily_options_exist(path: str) -> None:
    flags = {word for param in every_command()[path].params for word in param.opts}
    assert {f"--{name}" for name in DAILY[path].split()} <= flags


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_valid(path: str) -> None:
    line = EXAMPLES[path].partition(" > ")[0]
    assert line.startswith("timonel ")
    parse(line)


def test_help_all_belongs_to_the_script_after_dashes(timonel: Timonel) -> None:
    assert "no script at" in timonel("train", "none.py", "--", "--help-all").error_line


@pytest.mark.parametrize("command", ["train", "serve"])
def test_options_of_large_commands_are_in_sections(command, timonel, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    help_text = timonel(command, "--help-all").out.partition("Example:")[0]
    sections = re.split(r"^(?=\S.*:$)", help_text, flags=re.MULTILINE)[1:]
    assert sections[0].startswith("Arguments:")
    assert sections[-1].startswith("Options:")
    assert len(sections) > 5
    assert max(len(re.findall(r"^  -", part, re.MULTILINE)) for part in sections) <= 10
    assert re.findall(r"^  -", sections[-1], re.MULTILINE) == ["  -"]  # --help alone


def test_help_has_the_width_of_the_terminal(timonel: Timonel, monkeypatch) -> None:
    widths = {}
    for columns in (60, 110, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        widths[columns] = max(map(len, timonel("convert", "--help").out.splitlines()))
    assert widths[60] <= 60
    assert 80 < widths[110] <= 110
    assert widths[200] <= 120


def test_quiet_prints_results_and_no_hints(here: Path, timonel: Timonel) -> None:
    for name in "ab":
        (here / "raw" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (2, 2), 40 * number).save(here / "raw" / name / f"{number}.png")
    assert "next: " in timonel("convert", "raw", "one").out
    for words in (["-q", "convert", "raw", "two"], ["convert", "raw", "three", "--quiet"]):
        out = timonel(*words).out
        assert "12 images" in out
        assert "next: " not in out


def leaves(command, context, path=()):
    """Yield each command that runs something, with its path."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), context, (*path, name))


def test_commands_have_json() -> None:
    group = typer.main.get_command(main_module.app)
    without = {
        " ".join(path)
        for path, command in leaves(group, typer.Context(group))
        if not any("--json" in param.opts for param in command.params)
    }
    assert without == {"init", "serve"}


def test_version(timonel: Timonel) -> None:
    from timonel import __version__

    assert timonel("--version").out == f"timonel {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["trian"], "did you mean 'train'?"),
        (["runs", "shwo"], "did you mean 'show'?"),
        (["--nope"], "No such option: --nope: see 'timonel --help'"),
        (["init"], "see 'timonel init --help'"),
        (["init", "video"], "'TYPE': 'video' is not one of 'image', 'table': see 'timonel"),
        (["init", "imag"], "'imag' is not one of 'image', 'table': did you mean 'image'?"),
        (["train", "t.py", "--strategy", "miror"], "'tpu': did you mean 'mirrored'?"),
        (["convert", "a", "b", "--splits", "0.8", "0.1", "0.1"], "such as --splits 0.8,0.1,0.1"),
        (["train", "train.py", "--epochs", "3"], "timonel train train.py -- --epochs"),
        (
            ["train", "train.py", "--worker", "3"],
            "No such option: --worker: did you mean '--workers'?",
        ),
        (["tune", "train.py", "--hidden", "3"], "timonel tune train.py -- --hidden"),
        (["runs", "list", "--limt", "3"], "No such option: --limt: did you mean '--limit'?"),
        (["runs", "list", "--zzz"], "see 'timonel runs list --help'"),
        (["deploy", "digits", "--batching", "x"], "timonel deploy MODEL -- --batching"),
        (["deploy", "digits", "--batchin", "x"], "did you mean '--batching'?"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(argv, part, timonel: Timonel) -> None:
    outcome = timonel(*argv)
    assert outcome.exit_code == 2
    assert part in outcome.error_line
    assert outcome.out == ""


def test_global_options_may_stand_anywhere(here: Path, timonel: Timonel) -> None:
    for argv in (["-w", "elsewhere", "runs"], ["runs", "list", "--workspace", "elsewhere"]):
        outcome = timonel(*argv)
        assert outcome.exit_code == 2
        assert "elsewhere" in outcome.error_line
    assert not (here / "elsewhere").exists()


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("timonel.cli.settings.GlobalOptions.find", raise_it)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelError("a\nb", hint="c"), 7, "error: a b: c"),
        (Interrupted("stopped"), 130, "error: stopped"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_errors_end_with_their_exit_code(error, code, line, timonel, monkeypatch) -> None:
    fail_with(error, monkeypatch)
    outcome = timonel("runs")
    assert (outcome.exit_code, outcome.error_line) == (code, line)


def test_an_interrupt_that_was_told_is_not_told_again(timonel, monkeypatch) -> None:
    fail_with(Interrupted("interrupted", is_reported=True), monkeypatch)
    outcome = timonel("runs")
    assert (outcome.exit_code, outcome.err) == (130, "")


def test_an_error_of_the_users_code_is_its_traceback_and_nothing_else(timonel, monkeypatch) -> None:
    text = "Traceback (most recent call last):\n  ...\nValueError: theirs"
    fail_with(UserCodeError(text), monkeypatch)
    for argv in (["runs"], ["--debug", "runs"]):
        outcome = timonel(*argv)
        assert (outcome.exit_code, outcome.err) == (5, f"{text}\n")


@pytest.mark.parametrize("said", ["", "usage: train.py\ntrain.py: error: no such flag\n"])
def test_a_script_that_ended_itself_is_quoted(said: str, timonel, monkeypatch) -> None:
    error = UserCodeError(f"{said}the script ended with exit code 2", hint="see its log")
    fail_with(error, monkeypatch)
    outcome = timonel("runs")
    assert outcome.exit_code == 5
    assert outcome.err == f"{said}error: the script ended with exit code 2: see its log\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_is_wrong_with_a_disk_is_no_defect(number: int, timonel, monkeypatch) -> None:
    fail_with(OSError(number, os.strerror(number), "/there/file"), monkeypatch)
    outcome = timonel("runs")
    assert outcome.exit_code == 2
    expected = f"cannot read or write /there/file: {os.strerror(number)}"
    assert expected in outcome.error_line


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["train", "n" * 3000], "is too long: use a shorter name"),
        (["serve", "n" * 3000], "is too long: use a shorter name"),
        (["lineage", "n" * 3000], "is too long: use a shorter name"),
        # Since Python 3.13, Path.resolve() does not tell a loop from a path that does not exist.
        (
            ["convert", "loop", "out"],
            "loop is a loop of symbolic links"
            if sys.version_info < (3, 13)
            else "loop: check the path",
        ),
    ],
)
def test_a_path_that_cannot_be_opened_is_no_defect(
    argv: list[str], part: str, here: Path, timonel: Timonel
) -> None:
    find_workspace(here / ".timonel")
    (here / "loop").symlink_to("loop")
    outcome = timonel(*argv)
    assert outcome.exit_code == InputError.exit_code
    assert part in outcome.error_line
    assert len(outcome.error_line) < 250


def test_an_interrupt_outside_a_command_is_one_line_too(timonel, monkeypatch) -> None:
    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("timonel.cli.groups.LazyGroup.parse_args", raise_it)
    outcome = timonel("runs")
    assert (outcome.exit_code, outcome.error_line) == (130, "error: interrupted")


@pytest.mark.process
def test_interrupts_in_a_hurry_do_not_break_off_the_tidying(here: Path) -> None:
    code = """
import os, signal, sys, time
from timonel.cli import main
def run(argv, **_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        print("tidy")
    return 130
main.run = run
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "tidy\n", "")


def test_debug_shows_the_traceback(timonel: Timonel, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ModelError("broken"), monkeypatch)
    outcome = timonel("runs", "--debug")
    assert outcome.exit_code == 7
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1] == "error: broken"


def test_a_defect_is_one_line_that_says_where_its_traceback_is(
    timonel: Timonel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fail_with(ZeroDivisionError("by nothing"), monkeypatch)
    outcome = timonel("runs")
    assert outcome.exit_code == 1
    assert "unexpected ZeroDivisionError (by nothing)" in outcome.error_line
    place = outcome.error_line.partition("its traceback is in ")[2].partition(",")[0]
    assert "ZeroDivisionError: by nothing" in Path(place).read_text()


def test_a_defects_traceback_goes_into_the_workspace_where_there_is_one(
    here: Path, timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timonel.storage import find_workspace

    find_workspace(here / ".timonel")

    def raise_it(*_: object, **__: object) -> None:
        raise RuntimeError("no good")

    monkeypatch.setattr("timonel.tracking.list_runs", raise_it)
    outcome = timonel("runs")
    files = list((here / ".timonel" / "errors").iterdir())
    assert len(files) == 1
    assert str(files[0]) in outcome.error_line


@pytest.mark.process
def test_a_closed_pipe_is_no_defect(here: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m timonel --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: timonel")
    assert "Traceback" not in done.stderr
