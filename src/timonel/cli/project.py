"""Write the projects of ``timonel init``: templates and sample data.

Either all files are written or none.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from timonel.errors import AlreadyExistsError
from timonel.storage.atomic import unwritable

_README: dict[tuple[str, bool], dict[str, str]] = {
    ("image", True): {
        "data": "`digits/` holds handwritten digits, one folder per label. "
        "Put your own images there in the\nsame way.",
        "source": "digits/",
        "name": "digits",
        "input": "digits/7/0009.png",
    },
    ("image", False): {
        "data": "`IMAGES` below is your folder of images, with one folder per label.",
        "source": "IMAGES",
        "name": "images",
        "input": "IMAGE.png",
    },
    ("table", True): {
        "data": "`patients.csv` is a study of diabetes (Efron et al., 2004): nine measurements, "
        "a category, and\nwhether the disease went on `fast` or `slow` in the year after. "
        "Put your own CSV in its place and\nname the column to predict with `--label`.",
        "source": "patients.csv",
        "name": "patients",
        "label": "progression",
    },
    ("table", False): {
        "data": "`ROWS.csv` below is your CSV file, and `COLUMN` the column to predict.",
        "source": "ROWS.csv",
        "name": "rows",
        "label": "COLUMN",
    },
}
"""Template values of the README, with and without sample data."""

# A wheel build leaves out files that git ignores, so the template has another name.
_RENAMED = {"gitignore.txt": ".gitignore"}


def write_project(kind: str, folder: Path, *, with_data: bool = True) -> list[Path]:
    """Write a project of ``kind`` into ``folder``; return the written paths.

    Args:
        kind: ``image`` or ``table``.
        folder: The target folder; created if missing.
        with_data: Write sample data, which the README then describes.
    """
    _refuse_existing(folder, _names(kind, with_data=with_data))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as aside:
            _write_all(kind, Path(aside), with_data=with_data)
            # The temporary folder is on the same file system, so each move is atomic.
            return [
                Path(shutil.move(entry, folder / entry.name))
                for entry in sorted(Path(aside).iterdir())
            ]
    except OSError as error:
        raise unwritable(folder, error) from error


def _names(kind: str, *, with_data: bool) -> list[str]:
    names = [_RENAMED.get(entry.name, entry.name) for entry in _templates(kind)]
    return [*names, _SAMPLES[kind][0]] if with_data else names


def _refuse_existing(folder: Path, names: list[str]) -> None:
    existing = sorted(name for name in names if (folder / name).exists())
    if existing:
        raise AlreadyExistsError(
            f"{folder} already has {', '.join(existing)}",
            hint="choose another folder; nothing was written",
        )
    if folder.exists() and not folder.is_dir():
        raise AlreadyExistsError(f"{folder} is a file, not a folder")


def _write_all(kind: str, aside: Path, *, with_data: bool) -> None:
    for template in _templates(kind):
        target = aside / _RENAMED.get(template.name, template.name)
        text = template.read_text(encoding="utf-8")
        if template.name == "README.md":
            text = Template(text).substitute(_README[kind, with_data])
        target.write_text(text, encoding="utf-8")
    if with_data:
        name, write = _SAMPLES[kind]
        write(aside / name)


def _templates(kind: str) -> list[resources.abc.Traversable]:
    folder = resources.files("timonel") / "templates" / kind
    return [entry for entry in folder.iterdir() if entry.is_file()]


DIGITS = 600
"""Number of digits to write, of 1,797: enough to learn from."""

TABLE_COLUMNS = (
    "age",
    "sex",
    "bmi",
    "blood_pressure",
    "cholesterol",
    "ldl",
    "hdl",
    "cholesterol_ratio",
    "triglycerides",
    "glucose",
    "progression",
)


def write_digits(folder: Path, count: int = DIGITS) -> int:
    """Write handwritten digits as PNG files, one folder per digit.

    The digits are those of UCI, in 8x8 grey levels.

    Args:
        folder: The folder of label folders; created if missing.
        count: Number of digits, spread evenly over the set, so that all its writers are included.

    Returns:
        The number of files written.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    chosen = np.linspace(0, len(digits.target) - 1, count).round().astype(int)
    # Sixteen grey levels are scaled to the 256 of a PNG; ink is white on black as in the set.
    pixels = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, digits.target[chosen], strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:04d}.png")
    return len(pixels)


def write_table(path: Path) -> int:
    """Write a diabetes study as a CSV file with a class label.

    The study is that of Efron et al. (2004).

    Nine measurements are numbers, ``sex`` is a category (the study does not name its values), and
    ``progression`` is ``fast`` (above the median a year later) or ``slow``.

    Returns:
        The number of rows written.
    """
    import numpy as np
    from sklearn.datasets import load_diabetes

    study = load_diabetes(scaled=False)
    middle = float(np.median(study.target))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TABLE_COLUMNS)
        for row, target in zip(study.data, study.target, strict=True):
            writer.writerow(_table_row(row, fast=target > middle))
    return len(study.target)


def _table_row(row: Any, *, fast: bool) -> list[str]:
    values = [f"{value:g}" for value in row]
    values[1] = f"sex_{row[1]:.0f}"
    return [*values, "fast" if fast else "slow"]


_SAMPLES: dict[str, tuple[str, Callable[[Path], int]]] = {
    "image": ("digits", write_digits),
    "table": ("patients.csv", write_table),
}
KINDS = tuple(_SAMPLES)
