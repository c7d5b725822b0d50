"""Check Python, the system and the installed packages, without heavy imports."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files

from timonel._version import __version__
from timonel.cli.doctor.check import Check, Verdict

AREA = "packages"
EXTRAS = (
    ("legacy-keras", "tf_keras", "scripts written for Keras 2"),
    ("mlflow", "mlflow", "runs mirrored to MLflow, for 'mlflow ui'"),
    ("wandb", "wandb", "runs mirrored to Weights & Biases, with '--wandb'"),
    ("mpi", "mpi4py", "tasks that mpirun starts, with '--launcher mpi'"),
    ("s3", "s3fs", "data in s3:// buckets"),
    ("gcs", "gcsfs", "data in gs:// buckets"),
)
"""Extras: name, module that it installs, and purpose."""


def python() -> Check:
    """Check the versions of timonel and Python."""
    found = f"timonel {__version__}, Python {platform.python_version()}"
    if sys.version_info[:2] != (3, 11):
        hint = "tested on Python 3.11 only"
        return Check(AREA, "python", Verdict.NOTE, found, hint)
    return Check(AREA, "python", Verdict.OK, found)


def kernel() -> Check:
    """Check the operating system: jobs and the warm start need Linux."""
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() != "Linux":
        return Check(AREA, "system", Verdict.FAIL, found, "timonel runs on Linux")
    return Check(AREA, "system", Verdict.OK, found)


def extras() -> Iterator[Check]:
    """Report which extras are installed, and what the others are for."""
    for extra, module, purpose in EXTRAS:
        if importlib.util.find_spec(module) is not None:
            yield Check(AREA, f"extra {extra}", Verdict.OK, f"{purpose} ({_version(module)})")
        else:
            hint = f"pip install 'timonel[{extra}]'"
            yield Check(AREA, f"extra {extra}", Verdict.NOTE, f"not installed: {purpose}", hint)


def event_loop() -> Check:
    """Check whether the server's fast event loop and HTTP parser are installed."""
    missing = [
        name for name in ("uvloop", "httptools", "orjson") if not importlib.util.find_spec(name)
    ]
    if missing:
        hint = f"pip install {' '.join(missing)}"
        found = f"the server runs without {', '.join(missing)}"
        return Check("speed", "event loop", Verdict.NOTE, found, hint)
    return Check("speed", "event loop", Verdict.OK, "uvloop, httptools and orjson")


def json_reader() -> Check:
    """Check whether the server's parser of large JSON arrays is compiled."""
    package = files("timonel").joinpath("serving", "protocols", "tfs_rest")
    if any(
        each.name.startswith("_numbers") and each.name.endswith(".so") for each in package.iterdir()
    ):
        return Check("speed", "JSON reader", Verdict.OK, "compiled")
    found = "not compiled: the server reads large JSON requests with simdjson, at half the speed"
    hint = "install a C compiler and Python's headers, then install timonel again"
    return Check("speed", "JSON reader", Verdict.NOTE, found, hint)


def _version(module: str) -> str:
    names = metadata.packages_distributions().get(module, [module])
    # Several distributions may provide the module, such as mlflow and mlflow-skinny.
    name = next((each for each in names if each.replace("-", "_") == module), names[0])
    return f"{name} {metadata.version(name)}"
