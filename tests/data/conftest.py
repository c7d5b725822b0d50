"""Small sources, made anew for each test."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeImages = Callable[..., Path]
MakeCsv = Callable[..., Path]


@contextlib.contextmanager
def few_files_left(count: int) -> Iterator[None]:
    """Limit the number of files that this process may still open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = list(Path("/proc/self/fd").iterdir())
    used = {int(path.name) for path in found if path.exists()}  # without that of the folder
    # The lowest free numbers are given to new files.
    free = [number for number in range(max(used) + count + 2) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def make_images(tmp_path: Path) -> MakeImages:
    """Return what writes ``count`` small images for each label below a folder."""

    def make(
        labels: Sequence[str] = ("cat", "dog"),
        count: int = 10,
        *,
        name: str = "raw",
        size: tuple[int, int] = (6, 5),
        mode: str = "RGB",
        ending: str = "png",
    ) -> Path:
        random = np.random.default_rng(0)
        for label in labels:
            folder = tmp_path / name / label
            folder.mkdir(parents=True)
            for index in range(count):
                shape = size if mode == "L" else (*size, 3)
                pixels = random.integers(0, 256, shape, np.uint8)
                Image.fromarray(pixels, mode).save(folder / f"{index:03d}.{ending}")
        return tmp_path / name

    return make


@pytest.fixture
def make_csv(tmp_path: Path) -> MakeCsv:
    """Return what writes a CSV file of given lines, or one of 40 rows with three columns."""

    def make(*lines: str, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        rows = [f"{i}.5,{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}" for i in range(40)]
        path.write_text("\n".join(lines or ["size,colour,good", *rows]) + "\n")
        return path

    return make
