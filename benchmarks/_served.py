"""What the benchmark of serving asks for: models, requests to them, and right answers.

The models are made once and kept in the user's cache, under a digest of what makes them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _jobs import BenchmarkError

_MAKER = Path(__file__).parent / "scripts" / "serving_models.py"
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Case:
    """A model and a request to it, sent by so many clients at once.

    Attributes:
        name: Its short name.
        model: The model's folder and name.
        what: In words.
        concurrency: Requests under way.
        x: The request's instances, float32 [N, ...] or objects [N] of bytes.
        y: The model's answer, float32 [N, classes].
    """

    name: str
    model: str
    what: str
    concurrency: int
    x: np.ndarray
    y: np.ndarray

    @property
    def is_bytes(self) -> bool:
        """Whether the instances are bytes."""
        return self.x.dtype == object

    def check(self, answer: np.ndarray) -> None:
        """Raise if numbers are not the model's answer."""
        if answer.size != self.y.size:
            raise BenchmarkError(f"{self.name}: expected {self.y.size} numbers, got {answer.size}")
        if not np.allclose(answer.reshape(self.y.shape), self.y, rtol=_TOLERANCE, atol=1e-6):
            raise BenchmarkError(f"{self.name}: the answer is another than the model's")


_CASES = {
    "S": ("small", "28x28 to 128 to 10", 16),
    "B": ("small", "64 instances of S a request", 16),
    "M": ("mobile", "MobileNetV2, 224x224x3", 8),
    "R": ("resnet", "ResNet50, 224x224x3", 8),
    "J": ("jpeg", "MobileNetV2, from a JPEG of 640x480", 8),
}


@dataclass(frozen=True)
class Models:
    """The folder of models, and the requests to them."""

    folder: Path
    cases: dict[str, Case]


def models() -> Models:
    """Return the models, which are made if they are not there."""
    folder = _cache() / _digest()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        print("making the models (once)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            subprocess.run([sys.executable, str(_MAKER), made], check=True)
            Path(made).chmod(0o755)
            Path(made).rename(folder)
            Path(made).mkdir()  # what the block removes
    return Models(folder, {name: _case(folder, name) for name in _CASES})


def _case(folder: Path, name: str) -> Case:
    model, what, concurrency = _CASES[name]
    # Written by the script beside this file, of objects where they are bytes.
    with np.load(folder / f"{name}.npz", allow_pickle=True) as arrays:
        return Case(name, model, what, concurrency, arrays["x"], arrays["y"])


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "timonel-bench"


def _digest() -> str:
    made_by = _MAKER.read_bytes() + importlib.metadata.version("tensorflow").encode()
    return hashlib.sha256(made_by).hexdigest()[:16]
