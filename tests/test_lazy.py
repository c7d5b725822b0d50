from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "sample_lazy"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from timonel.lazy import lazy_names\n"
        "__getattr__, __dir__ = lazy_names(__name__, {'part.deep': ('one', 'two')})\n"
    )
    (folder / "part").mkdir()
    (folder / "part" / "__init__.py").write_text("")
    (folder / "part" / "deep.py").write_text("one, two = 1, 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_names_are_imported_on_first_use(package: str) -> None:
    module = __import__(package)
    assert {"one", "two"} <= set(dir(module))
    assert f"{package}.part" not in sys.modules
    assert module.two == 2
    assert f"{package}.part.deep" in sys.modules
    assert vars(module)["two"] == 2


def test_other_names_are_unknown(package: str) -> None:
    with pytest.raises(AttributeError, match="module 'sample_lazy' has no attribute 'three'"):
        _ = __import__(package).three
