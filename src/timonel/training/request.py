"""Validate the arguments of `train` before anything is created or started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.data import Dataset
from timonel.errors import SpecError
from timonel.storage.uris import filesystem
from timonel.training import functions
from timonel.training.entries import Entry, Program, find_program
from timonel.training.settings import Settings
from timonel.training.worker.strategy.strategies import check_settings

_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_DATA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Request:
    """A validated training request.

    Attributes:
        program: The program to run.
        datasets: Training datasets by name; the unnamed one has the name ``''``.
        settings: How it trains.
        params: Parameters: text values for flags, or a function's keywords unchanged.
        args: Further arguments of a program with a command line.
        call: How tasks call the function, if the program is one.
    """

    program: Program
    datasets: Mapping[str, Dataset]
    settings: Settings
    params: Mapping[str, Any]
    args: tuple[str, ...]
    call: functions.Call | None = None


def check_request(
    entry: Entry,
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None,
    settings: Settings,
    params: Mapping[str, Any] | None,
    args: Sequence[str],
    pass_job_dir: bool = False,
) -> Request:
    """Check all that can be checked without running the program.

    Raises:
        NotFoundError: The program or a dataset does not exist.
        SpecError: A value is invalid; the message says what is valid.
        CorruptError: A shard of a dataset is missing or truncated.
        MissingExtraError: No installed package can write to the checkpoint URI.
    """
    program = find_program(entry, os.environ)
    check_settings(settings)
    if settings.checkpoints.checkpoint_uri is not None:
        filesystem(settings.checkpoints.checkpoint_uri)  # raises if its package is not installed
    datasets = {name: Dataset.open(uri) for name, uri in _named(data).items()}
    for dataset in datasets.values():
        _check_enough(
            dataset, settings.distribution.workers * settings.distribution.devices_per_worker
        )
        dataset.check_sizes()
    given = _params(program, params or {})
    call = None
    if program.function is not None:
        functions.check_call(
            program.function, {**given, **({"job_dir": ""} if pass_job_dir else {})}
        )
        call = functions.call_of(program.function, given)
    return Request(
        program=program,
        datasets=datasets,
        settings=settings,
        params=given,
        args=_args(program, args),
        call=call,
    )


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


def _params(program: Program, params: Mapping[str, Any]) -> dict[str, Any]:
    if program.function is not None:
        return dict(params)
    for name in params:
        if not _PARAM.match(name):
            raise SpecError(
                f"expected a parameter's name that can be a flag, got {name!r}",
                hint="letters, digits, '_', '-' and '.', beginning with a letter: --set lr=0.01",
            )
    return {name: str(value) for name, value in params.items()}


def _args(program: Program, args: Sequence[str]) -> tuple[str, ...]:
    if program.function is not None and args:
        raise SpecError(
            f"expected no args for the function {functions.described(program.function)}, got "
            f"{list(args)}",
            hint="give a function's arguments by name, with params",
        )
    return tuple(args)
