"""What tests of training share: a dataset of tiny images, and jobs without a mirror beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timonel.data import Dataset, convert
from timonel.engines import JobSpec
from timonel.engines.local import LocalEngine
from timonel.storage import Workspace, find_workspace
from timonel.training import Run

SCRIPTS = Path(__file__).parent / "scripts"


class BareEngine(LocalEngine):
    """The local engine without sidecars: the mirrors have tests of their own."""

    def submit(self, spec: JobSpec) -> None:
        super().submit(spec.model_copy(update={"sidecars": ()}))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """120 grey images of 8 x 8 pixels, 96 of them for training; the label is the brighter half."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(120):
        label = number % 2
        pixels = random.integers(0, 120, (8, 8), dtype=np.uint8)
        pixels[:, label * 4 : label * 4 + 4] += 100
        split = "train" if number < 96 else "validation" if number < 108 else "test"
        folder = root / "raw" / split / ("left", "right")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return convert(root / "raw", root / "data")


@pytest.fixture(scope="module")
def jobs_workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One workspace for all jobs of a module, which share a zygote."""
    return find_workspace(tmp_path_factory.mktemp("jobs") / "workspace")


@pytest.fixture
def engine(jobs_workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareEngine]:
    """An engine; what a test leaves running is stopped."""
    # Long enough for the next test to find the zygote, short enough to be gone soon.
    monkeypatch.setenv("TIMONEL_WARM_LINGER", "30")
    engine = BareEngine(jobs_workspace.jobs)
    yield engine
    for job in engine.jobs():
        if not job.state.is_final:
            engine.cancel(job.job_id)


def results(run: Run) -> dict[str, Any]:
    """Return what each task of a run has written down with ``write_result`` of the scripts."""
    folder = run.workspace.jobs / run.id
    return {
        path.stem: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
        if path.stem.startswith(("chief", "worker"))
    }


def log_of(run: Run, task_id: str = "chief-0") -> str:
    """Return everything a task has written."""
    return "\n".join(line.text for line in run.job.logs(task_id=task_id))
