"""The contract of engines, kept by one whose tasks share no path with the submitter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contracts.engines import EngineContract
from tests.engines.local.harness import MARK
from tests.engines.remote.engine import RemoteEngine, RemoteHarness, start_node
from timonel.engines.source import pack
from timonel.processes.tree import descendants, kill_all

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "program").mkdir()
    (folder / "program" / "source.txt").write_text("")
    archive = folder / "program.tar.gz"
    archive.write_bytes(pack(folder / "program"))
    return archive


class TestRemote(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path, source: Path) -> Iterator[RemoteHarness]:
        process, port = start_node(tmp_path)
        env = {MARK: uuid4().hex}
        yield RemoteHarness(RemoteEngine(port), str(source), env=env, port=port)
        kill_all(lambda: descendants(process.pid))
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
