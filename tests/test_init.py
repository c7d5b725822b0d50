"""The façade: its names, what it costs, and that it agrees with the command line."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import timonel
from timonel.cli.commands.predict import BATCH_OPTIONS, SINGLE_OPTIONS
from timonel.cli.main import app
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import start_run

NAMES = [
    "Artifact",
    "BatchPrediction",
    "Dataset",
    "Endpoint",
    "Job",
    "JobState",
    "JobStatus",
    "ModelRepository",
    "ModelVersion",
    "Prediction",
    "Run",
    "RunRecord",
    "Server",
    "Study",
    "TimonelError",
    "Workspace",
    "__version__",
    "alias",
    "convert",
    "delete",
    "deploy",
    "export",
    "find_workspace",
    "lineage",
    "list_runs",
    "predict",
    "predict_batch",
    "prune",
    "read_run",
    "serve",
    "train",
    "tune",
]

PYTHON_ONLY = {
    "workspace",  # a global option of the command line
    "progress",
    "scanning",  # its displays
    "notify",
    "on_ready",
    "on_warning",
    "on_change",
    "block",  # the opposite of --detach
}
CLI_ONLY = {"json", "top", "help", "foreground", "dry_run"}
SPELLED_OTHERWISE = {
    # Option or argument of the command line -> argument of the function.
    "tune": {"param": "space", "config": None},  # the command reads the file
    "predict": {
        "model": "model_or_url",
        "api_key_file": "api_key",
        **dict.fromkeys(("batch", *BATCH_OPTIONS)),
    },
    "predict_batch": {"inputs": None, "batch": "inputs", **dict.fromkeys(SINGLE_OPTIONS)},
}
SAME_COMMAND = {"predict_batch": "predict"}


def test_the_names_are_pinned() -> None:
    assert timonel.__all__ == NAMES
    assert set(NAMES) <= set(dir(timonel))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there(name: str) -> None:
    assert getattr(timonel, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nosuch"):
        timonel.nosuch  # noqa: B018 - looking is the test


def test_no_name_is_a_packages_name() -> None:
    folder = Path(timonel.__file__).parent
    packages = {path.stem for path in folder.iterdir()}
    assert not packages & set(NAMES)


@pytest.mark.process
def test_importing_it_loads_nothing_else() -> None:
    code = "import json, sys; before = set(sys.modules); import timonel; "
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert {name for name in loaded if name.startswith("timonel")} == {
        "timonel",
        "timonel._version",
        "timonel.lazy",
    }
    # The standard library's typing and what belongs to it; nothing that is installed.
    assert not {
        name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names
    } - {
        "timonel",
        "timonel._version",
        "timonel.lazy",
    }


def command_line(name: str) -> dict[str, Any]:
    """Return a command's parameters and defaults, by the function's names."""
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), SAME_COMMAND.get(name, name))
    spelled = SPELLED_OTHERWISE.get(name, {})
    return {
        spelled.get(param.name, param.name): ... if param.required else param.default
        for param in command.params
        if param.name not in CLI_ONLY and spelled.get(param.name, "") is not None
    }


def function(name: str) -> dict[str, Any]:
    """Return a function's parameters and defaults."""
    found = inspect.signature(getattr(timonel, name)).parameters.values()
    return {
        param.name: ... if param.default is param.empty else param.default
        for param in found
        if param.name not in PYTHON_ONLY
    }


@pytest.mark.parametrize(
    "name",
    ["convert", "train", "tune", "export", "serve", "deploy", "predict", "predict_batch"],
)
def test_the_command_line_has_the_same_names_and_defaults(name: str) -> None:
    typed, called = command_line(name), function(name)
    assert typed.keys() == called.keys()
    for parameter, default in typed.items():
        if called[parameter] is not ... or default is not None:  # --config may state it
            assert plain(parameter, default) == plain(parameter, called[parameter]), parameter


def plain(parameter: str, default: Any) -> Any:
    """Return a default in one spelling: an empty list is none, fractions are numbers."""
    if parameter == "workers":
        return str(default)  # 4 and "2:8" in Python, a text on the command line
    if parameter == "goal" and default is None:
        return "maximize"  # the command line takes a list, whose default is in the help
    return None if default in ([], (), {}) else default


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: timonel.train("train.py", epochs=1),  # type: ignore[call-arg]
            "no argument 'epochs': give parameters of the script as params={'epochs': 1}",
        ),
        (lambda: timonel.train("train.py", wrokers=2), "did you mean 'workers'?"),  # type: ignore[call-arg]
        (lambda: timonel.train(3), "expected entry= as text or a path or a function"),  # type: ignore[arg-type]
        (lambda: timonel.train("train.py", ps="many"), "expected ps= as a whole number"),  # type: ignore[arg-type]
        (lambda: timonel.tune("train.py"), "missing a required argument: 'space'"),  # type: ignore[call-arg]
        (lambda: timonel.serve("digits", rest_prot=1), "did you mean 'rest_port'?"),  # type: ignore[call-arg]
        (lambda: timonel.deploy(object()), "expected model= as text, got"),  # type: ignore[arg-type]
        (lambda: timonel.predict(object(), []), "expected model_or_url= as text or a path"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_get_one_line(call: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.process
@pytest.mark.parametrize("name", ["data", "tracking", "training"])
def test_public_modules_need_no_import_of_their_own(name: str) -> None:
    code = f"import timonel; print(timonel.{name}.__name__, {name!r} in dir(timonel))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"timonel.{name}", "True"]


def test_runs_are_found_sorted_and_chosen(workspace: Workspace) -> None:
    for name, loss in (("a", 0.5), ("b", 0.25), ("c", 2.0)):
        with start_run(workspace, "train", name=name) as run:
            run.metrics({"loss": loss})
    found = timonel.list_runs(where=["loss < 1"], sort="loss", workspace=workspace.root)
    assert [run.name for run in found] == ["b", "a"]
    assert found[0] == timonel.read_run("b", workspace=workspace)
    assert (found[0].status, found[0].metrics, found[0].params) == ("succeeded", {"loss": 0.25}, {})
    with pytest.raises(NotFoundError):
        found[0].job.status()
    assert repr(found[0]).endswith(" 'b' succeeded {'loss': 0.25}>")
    assert len(repr(found[0])) < 100


def test_a_version_is_given_as_a_path_and_has_a_short_name(tmp_path: Path) -> None:
    version = timonel.ModelVersion(name="cats", number=2, path=tmp_path)
    assert os.fspath(version) == str(tmp_path)
    assert repr(version) == f"ModelVersion('cats/2', '{tmp_path}')"
