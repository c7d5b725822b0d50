"""Models in Python, and SavedModels made elsewhere, as versions; nothing of them is run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import ModelError, SpecError
from timonel.models import ModelRepository
from timonel.models.inspection import is_python_model


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "model.pyc").touch()
    (folder / "model.py").write_text("raise SystemExit\nclass PythonModel: pass\n")
    (folder / "weights").write_text("1")
    return folder


def test_a_folder_becomes_the_next_version(repository: ModelRepository, source: Path) -> None:
    assert repository.add("sk", source).number == 1
    version = repository.add("sk", source)
    assert str(version) == "sk/2"
    assert {path.name for path in version.path.iterdir()} == {"model.py", "weights"}
    assert version.is_python
    assert version.signatures == {}
    assert version.describe()["signatures"] == {}
    assert repository.resolve(version.path) == version
    assert repository.resolve("sk") == version


@pytest.mark.parametrize(
    "code",
    [
        "class PythonModel: pass",
        "from elsewhere import Model as PythonModel",
        "from elsewhere import PythonModel",
        "PythonModel = make()",
    ],
)
def test_the_class_may_come_from_anywhere(
    repository: ModelRepository, source: Path, code: str
) -> None:
    (source / "model.py").write_text(code)
    repository.add("sk", source)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", "defines no class PythonModel"),
        ("class (", "model.py, line 1 is not valid Python: invalid syntax"),
        ("\0", "is not valid Python: source code string cannot contain null bytes"),
    ],
)
def test_what_is_no_model_is_told_before_anything_is_written(
    repository: ModelRepository, source: Path, code: str, words: str
) -> None:
    (source / "model.py").write_text(code)
    with pytest.raises(ModelError) as caught:
        repository.add("sk", source)
    assert words in caught.value.message
    assert not repository.root.exists()


def test_a_folder_of_something_else_is_refused(repository: ModelRepository, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds neither"):
        repository.add("sk", tmp_path)
    with pytest.raises(SpecError):
        repository.add("1", tmp_path)


def test_a_saved_model_made_elsewhere_is_taken_too(
    repository: ModelRepository, source: Path
) -> None:
    (source / "saved_model.pb").touch()
    # The code may load it; served without the code, it would take other inputs.
    assert is_python_model(source)
    assert repository.add("other", source).is_python
    (source / "model.py").unlink()
    assert not repository.add("other", source).is_python
