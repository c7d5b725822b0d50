"""What is asked of `train`, checked before anything is made or started."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from timonel.data import Dataset
from timonel.errors import NotFoundError, SpecError
from timonel.training.settings import Settings
from timonel.training.worker.strategies import check_settings

_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_DATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"

KerasFlavour = Literal["keras", "tf_keras"]


@dataclass(frozen=True)
class Request:
    """A request that can be carried out.

    Attributes:
        script: The user's script.
        datasets: What it trains on, by name; the unnamed one has the name ``''``.
        settings: How it trains.
        params: Parameters as the script gets them.
        args: Further arguments of the script.
        keras: Which Keras the script uses.
    """

    script: Path
    datasets: Mapping[str, Dataset]
    settings: Settings
    params: Mapping[str, str]
    args: tuple[str, ...]
    keras: KerasFlavour


def check_request(
    entry: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None,
    settings: Settings,
    params: Mapping[str, Any] | None,
    args: Sequence[str],
) -> Request:
    """Check all that can be checked without running the script.

    Raises:
        NotFoundError: There is no such script or dataset.
        SpecError: A value cannot be used; the message says what would be.
        CorruptError: A shard of a dataset is missing or cut off.
    """
    script = _script(entry)
    check_settings(settings)
    datasets = {name: Dataset.open(uri) for name, uri in _named(data).items()}
    for dataset in datasets.values():
        _check_enough(
            dataset, settings.distribution.workers * settings.distribution.devices_per_worker
        )
        dataset.check_sizes()
    return Request(
        script=script,
        datasets=datasets,
        settings=settings,
        params=_params(params or {}),
        args=tuple(args),
        keras=_flavour(script, os.environ),
    )


def _script(entry: str | os.PathLike[str]) -> Path:
    path = Path(entry).expanduser().absolute()
    if path.suffix == ".ipynb":
        raise SpecError(
            f"expected a Python script, got the notebook {path.name}",
            hint="export its code first: jupyter nbconvert --to script",
        )
    if path.is_dir():
        raise SpecError(f"expected a Python script, got the folder {path}")
    if not path.is_file():
        raise NotFoundError(
            f"expected a script at {path}, found none",
            hint="give the path of a Python file; 'timonel init image' writes one to start from",
        )
    return path


def _named(data: str | os.PathLike[str] | Mapping[str, str] | None) -> dict[str, str]:
    if data is None:
        return {}
    if isinstance(data, str | os.PathLike):
        return {"": os.fspath(data)}
    for name in data:
        if name and not _DATA_NAME.match(name):
            raise SpecError(
                f"expected a dataset's name of letters, digits and '_', got {name!r}",
                hint="the script finds it under the environment variable TIMONEL_DATA_<NAME>",
            )
    return dict(data)


def _check_enough(dataset: Dataset, replicas: int) -> None:
    records = dataset.count("train")
    if records < replicas:
        raise SpecError(
            f"expected at least {replicas} records to train on, one for each replica, found "
            f"{records} in {dataset.uri}",
            hint="use fewer workers, or convert with another --splits",
        )


def _params(params: Mapping[str, Any]) -> dict[str, str]:
    for name in params:
        if not _PARAM.match(name):
            raise SpecError(
                f"expected a parameter's name that can be a flag, got {name!r}",
                hint="letters, digits, '_', '-' and '.', beginning with a letter: --set lr=0.01",
            )
    return {name: str(value) for name, value in params.items()}


def _flavour(script: Path, environ: Mapping[str, str]) -> KerasFlavour:
    """Return which Keras a script uses: the one its environment or its text names."""
    if environ.get(LEGACY_KERAS, "").lower() in {"1", "true"}:
        return "tf_keras"
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError:
        return "keras"  # the task shows the error as Python does
    return "tf_keras" if any(map(_names_legacy_keras, ast.walk(tree))) else "keras"


def _names_legacy_keras(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "tf_keras" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "tf_keras"
    return isinstance(node, ast.Constant) and node.value == LEGACY_KERAS
