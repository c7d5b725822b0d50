"""Jobs with parameter servers that nobody disturbs: see `test_parameter_server_faults` too."""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import SCRIPTS, BareEngine, results
from timonel.storage import Workspace
from timonel.training import train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.parametrize("flavour", ["keras", pytest.param("tf_keras", marks=pytest.mark.soak)])
def test_divided_among_workers_it_trains_as_one_process_does(
    flavour: str,
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = _script(tmp_path, "equal.py", flavour)
    alone = _alone(script, tmp_path, monkeypatch)
    run = train(script, workspace=jobs_workspace, on=engine, ps=2, workers=2, backup_workers=0)
    found = results(run)["chief-0"]
    assert found["calls"] == alone["calls"]
    assert set(found["history"]) == set(alone["history"])
    for name, values in alone["history"].items():
        assert np.allclose(found["history"][name], values, atol=1e-5), name
    for name in ("evaluated", "predicted"):
        assert np.allclose(found[name], alone[name], atol=1e-5), name
    for ours, theirs in zip(found["weights"], alone["weights"], strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)


def test_no_metric_is_lost_and_a_loaded_model_is_evaluated(
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = _alone(SCRIPTS / "metrics.py", tmp_path, monkeypatch)
    run = train(
        SCRIPTS / "metrics.py",
        workspace=jobs_workspace,
        on=engine,
        ps=1,
        workers=1,
        backup_workers=0,
    )
    found = results(run)["chief-0"]
    for name, theirs in alone.items():
        assert set(found[name]) == set(theirs)
        for metric, values in theirs.items():
            assert np.allclose(found[name][metric], values, atol=1e-4), metric


@pytest.mark.soak
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
@pytest.mark.parametrize("options", [{"warmup_epochs": 9}, {"workers": 1, "backup_workers": 0}])
def test_each_kind_of_model_trains_as_in_one_process_or_is_refused(
    flavour: str,
    options: dict[str, Any],
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = _script(tmp_path, "models.py", flavour)
    alone = _alone(script, tmp_path, monkeypatch)
    given = {"workers": 2, **options}
    run = train(script, workspace=jobs_workspace, on=engine, ps=2, **given)
    found = results(run)["chief-0"]
    assert set(found) == set(alone)
    refused = {name: each["error"] for name, each in found.items() if "error" in each}
    assert set(refused) == {"refused_eager", "refused_twice", "refused_xla"}, refused
    for name, ours in found.items():
        draws_otherwise = flavour == "tf_keras" and name in {"dropout", "images"}
        if name not in refused and not draws_otherwise:
            _assert_same(name, ours, alone[name], atol=1e-3 if "float16" in name else 1e-5)


def _assert_same(name: str, ours: Any, theirs: Any, *, atol: float) -> None:
    assert ours["iterations"] == theirs["iterations"], name
    assert set(ours["history"]) == set(theirs["history"]), name
    for metric, values in theirs["history"].items():
        assert np.allclose(ours["history"][metric], values, atol=atol), (name, metric)
    for one, other in zip(ours["weights"], theirs["weights"], strict=True):
        assert np.allclose(one, other, atol=atol), name


def _alone(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a script writes that no job runs."""
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        # Keras 3 reads a learning rate as NumPy does not want it any more.
        warnings.simplefilter("ignore", DeprecationWarning)
        runpy.run_path(str(script))
    return json.loads((folder / "timonel-job" / "chief-0.json").read_text())


def _script(folder: Path, name: str, flavour: str) -> Path:
    path = folder / name
    text = (SCRIPTS / name).read_text()
    path.write_text(text.replace("import keras\n", f"import {flavour} as keras\n"))
    return path
