from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from timonel.engines import (
    engine_names,
    get_engine,
    get_service_engine,
    registry,
    service_engine_names,
)
from timonel.engines.local import LocalEngine
from timonel.engines.local.services import LocalServiceEngine
from timonel.errors import EngineError, SpecError
from timonel.storage import find_workspace


def test_an_engine_is_found_by_its_name(tmp_path: Path) -> None:
    engine = get_engine("local", find_workspace(tmp_path / "space"))
    assert isinstance(engine, LocalEngine)
    assert engine.jobs() == []


def test_an_unknown_engine_names_those_there_are(tmp_path: Path) -> None:
    workspace = find_workspace(tmp_path / "space")
    with pytest.raises(SpecError, match=r"no such engine: 'slurm': use kubernetes or local"):
        get_engine("slurm", workspace)
    with pytest.raises(SpecError, match=r"'kubernets': did you mean 'kubernetes'\?"):
        get_engine("kubernets", workspace)
    assert "local" in engine_names()


def test_a_service_engine_is_found_by_its_name(tmp_path: Path) -> None:
    engine = get_service_engine(None, find_workspace(tmp_path / "space"))
    assert isinstance(engine, LocalServiceEngine)
    assert engine.services() == []
    with pytest.raises(SpecError, match=r"no such service engine: 'slurm': use .*local"):
        get_service_engine("slurm", find_workspace(tmp_path / "space"))
    assert "local" in service_engine_names()


def test_an_engine_that_cannot_be_loaded_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'slurm'")

    entry = SimpleNamespace(name="slurm", value="timonel_slurm:Slurm", load=load)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [entry])
    with pytest.raises(EngineError, match=r"'slurm' \(timonel_slurm:Slurm\) cannot be loaded: Mod"):
        get_engine("slurm", find_workspace(tmp_path / "space"))
