"""Workers that get this package from the client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.conftest import MakeCsv, MakeImages
from tests.data.runners.workers import HAS_BOOT, bare_workers
from timonel.data.conversion import convert
from timonel.data.runners.worker_wheel import CONVERSION, FILE_SYSTEMS
from timonel.storage import Workspace

pytestmark = [
    pytest.mark.beam,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        not HAS_BOOT, reason="needs Beam's boot program, which make test-beam installs with Go"
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine whose workers have only Beam and the packages that a conversion requires."""
    folder = tmp_path_factory.mktemp("workers")
    with bare_workers(folder, [*CONVERSION, *FILE_SYSTEMS]) as workers:
        python = folder / "template" / "bin" / "python"
        for name in ("timonel", "tensorflow"):
            assert subprocess.run([python, "-I", "-c", f"import {name}"], check=False).returncode
        # Prism gives workers a minute to install packages, which a busy machine does not keep.
        yield f"runner=PortableRunner,job_endpoint=embed,{workers}"


def test_workers_without_the_package(
    make_images: MakeImages, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace, engine: str
) -> None:
    for source, options in ((make_images(), {}), (make_csv(), {"label": "good"})):
        local = convert(source, tmp_path / f"{source.stem}-local", workspace=workspace, **options)
        made = convert(
            source,
            tmp_path / f"{source.stem}-beam",
            workspace=workspace,
            runner="beam",
            beam=engine,
            **options,
        )
        assert made.digest == local.digest
