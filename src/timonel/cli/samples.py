"""Sample data from scikit-learn's bundled data sets, without downloads.

The written files are byte-identical each time.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

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
