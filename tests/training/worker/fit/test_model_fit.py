"""The Keras that a job does not wrap."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from timonel.errors import SpecError
from timonel.training.worker.fit import model_fit


@pytest.fixture(autouse=True)
def no_finder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def test_fit_of_a_keras_that_is_imported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tf_keras").mkdir()
    (tmp_path / "tf_keras" / "__init__.py").write_text("class Model:\n    def fit(self): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    model_fit.reject_other_keras("keras")
    imported = importlib.import_module("tf_keras")
    # The import must leave nothing behind for the tests after this one.
    monkeypatch.delitem(sys.modules, "tf_keras")
    assert imported.__file__ == str(tmp_path / "tf_keras" / "__init__.py")
    with pytest.raises(SpecError, match="calls fit of tf_keras") as caught:
        imported.Model().fit([1], epochs=2)
    assert "TF_USE_LEGACY_KERAS=1" in (caught.value.hint or "")


def test_fit_of_a_keras_that_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("keras")
    module.Model = type("Model", (), {"fit": lambda self: None})  # type: ignore[attr-defined]  # made up here
    monkeypatch.setitem(sys.modules, "keras", module)
    model_fit.reject_other_keras("tf_keras")
    with pytest.raises(SpecError, match="this job trains with tf_keras"):
        module.Model().fit()


def test_a_keras_that_is_not_installed_is_missing_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    model_fit.reject_other_keras("keras")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tf_keras")
