"""The notebook under examples/ is run as a person would run it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "digits.ipynb"


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "held-out accuracy" in printed
    assert "digits/7/0009.png" in printed
    assert "files digits" in printed
