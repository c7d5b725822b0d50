"""Layout of a job's checkpoints: folder names, order, the best one. Imports no NumPy.

<job folder>/checkpoints/fit-000/epoch-0003/                 the end of the third epoch
<job folder>/checkpoints/fit-000/epoch-0003-step-0000050/    fifty steps of the next one
<job folder>/checkpoints/fit-000/final/                      the call has returned
"""

from __future__ import annotations

from pathlib import Path

from timonel.errors import CorruptError, FormatError, InputError
from timonel.storage import read_document
from timonel.training.evaluations import EvaluationRecords
from timonel.training.option_values import Best

STATE = "state.json"
ARRAYS = "arrays.bin"
FINAL = "final"


def fit_folder(root: Path, fit: int) -> Path:
    """Return the folder of a ``fit`` call's checkpoints."""
    return root / f"fit-{fit:03d}"


def name_of(next_epoch: int, step: int, *, finished: bool) -> str:
    """Return a checkpoint's folder name, after ``step`` steps of the next epoch."""
    if finished:
        return FINAL
    return f"epoch-{next_epoch:04d}" + (f"-step-{step:07d}" if step else "")


def is_name(name: str) -> bool:
    """Whether a folder name is that of a checkpoint."""
    parts = name.removeprefix("epoch-").split("-step-")
    known = name.startswith("epoch-") and len(parts) <= 2 and all(map(str.isdecimal, parts))
    return name == FINAL or known


def age(name: str) -> tuple[int, int]:
    """Return a key that sorts folder names from oldest to newest."""
    if name == FINAL:
        return (1 << 62, 0)
    epoch, _, step = name.removeprefix("epoch-").partition("-step-")
    return int(epoch), int(step or 0)


def newest_first(root: Path, fit: int) -> list[Path]:
    """Return the folders of a call's checkpoints, the newest first."""
    found = [path for path in fit_folder(root, fit).glob("*") if is_name(path.name)]
    return sorted(found, key=lambda path: age(path.name), reverse=True)


def best_folder(
    root: Path, fit: int, by: Best | None, records: EvaluationRecords | None
) -> Path | None:
    """Return the folder of a call's best checkpoint by a criterion, if one is kept."""
    if by is None:
        return None
    if records is not None and by.needs_evaluation:
        name = records.read(fit).best
        return None if name is None else fit_folder(root, fit) / name
    values = {
        folder: value
        for folder in newest_first(root, fit)
        if (value := _metric(folder, by.metric)) is not None
    }
    return (max if by.larger else min)(values, key=lambda folder: values[folder], default=None)


def _metric(folder: Path, name: str) -> float | None:
    try:
        metric = read_document(folder / STATE, "checkpoint").get("metric")
    except (CorruptError, FormatError, InputError):
        return None
    return float(metric["value"]) if metric is not None and metric["name"] == name else None
