"""Workers of Apache Beam that have nothing but Beam, as on a machine of its own.

``TIMONEL_BEAM_BOOT`` is the program of Beam's containers, which installs the staged packages with
pip and then starts the worker.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from timonel.processes.ports import PortReservation

BOOT = os.environ.get("TIMONEL_BEAM_BOOT") or ""
HAS_BOOT = Path(BOOT).is_file()

# Each worker gets its own copy of the environment.
_START = """#!/bin/bash
set -e
unset PYTHONPATH
copy=$(mktemp -d -p {folder})
cp -rs {folder}/template/. $copy
export PATH=$copy/bin:$PATH RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
export PIP_NO_INDEX=1
exec {boot} --semi_persist_dir=$copy "$@"
"""


@contextlib.contextmanager
def bare_workers(folder: Path, packages: Iterable[str]) -> Iterator[str]:
    """Make an environment; yield Beam's options for a pool of workers that start in copies of it.

    Args:
        folder: Receives it.
        packages: What it has beside Beam, with all that they require, but not this package.
    """
    template = folder / "template"
    subprocess.run([sys.executable, "-m", "venv", template], check=True)
    (site,) = template.glob("lib/python*/site-packages")
    for name in _closure(["apache-beam", *packages]):
        for top in {file.parts[0] for file in metadata.files(name) or ()}:
            path = Path(str(metadata.distribution(name).locate_file(top)))
            if top != ".." and path.exists() and not (site / top).exists():
                (site / top).symlink_to(path)
    start = folder / "start"
    start.write_text(_START.format(folder=folder, boot=BOOT))
    start.chmod(0o755)
    with PortReservation(1) as ports:
        (port,) = (address.rpartition(":")[2] for address in ports)
    module = "apache_beam.runners.worker.worker_pool_main"
    process = subprocess.Popen(
        [sys.executable, "-m", module, f"--service_port={port}", f"--container_executable={start}"],
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield f"environment_type=EXTERNAL,environment_config=localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def _closure(names: Iterable[str]) -> set[str]:
    """Return the names of packages that are installed here, with those that they require."""
    found: set[Requirement] = set()
    todo = {Requirement(name) for name in names}
    while todo:
        found |= todo
        todo = {needed for requirement in todo for needed in _required(requirement)} - found
    return {requirement.name for requirement in found if _is_installed(requirement)}


def _required(requirement: Requirement) -> Iterator[Requirement]:
    if _is_installed(requirement):
        for needed in map(Requirement, metadata.requires(requirement.name) or ()):
            extras = ("", *requirement.extras)
            if not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras):
                needed.marker = None
                yield needed


def _is_installed(requirement: Requirement) -> bool:
    return any(metadata.distributions(name=requirement.name))
