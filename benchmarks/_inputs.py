"""What the benchmarks train on, made from scikit-learn's handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def digits_npz(path: Path, side: int = 8) -> Path:
    """Write ``x`` float32 [1797, side * side] in 0 to 1 and ``y`` int64 [1797]; return the path."""
    images, labels = _digits()
    scaled = np.kron(images, np.ones((1, side // 8, side // 8)))
    x = (scaled / 16).reshape(len(scaled), -1).astype("float32")
    np.savez(path, x=x, y=labels.astype("int64"))
    return path


def two_kinds_of_jpegs(folder: Path, count: int, side: int = 150) -> Path:
    """Write ``count`` colour JPEGs of ``side`` pixels into the folders even and odd."""
    from PIL import Image

    images, labels = _digits()
    for number, (pixels, label) in enumerate(zip(images[:count], labels, strict=False)):
        path = folder / ("odd" if label % 2 else "even") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((pixels * 15.9375).astype("uint8"))
        grey.resize((side, side), Image.Resampling.BICUBIC).convert("RGB").save(path, quality=90)
    return folder


def digit_folders(folder: Path, side: int) -> Path:
    """Write all digits as grey PNG files of ``side`` pixels, in a folder for each label."""
    from PIL import Image

    for number, (pixels, label) in enumerate(zip(*_digits(), strict=True)):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((pixels * 15.9375).astype("uint8"))
        grey.resize((side, side), Image.Resampling.BICUBIC).save(path)
    return folder


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target
