"""What others may import; a name that goes, or comes, is a decision and is made here too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from timonel import storage, tracking
from timonel.tracking import mirrors


def test_the_public_names() -> None:
    assert set(tracking.__all__) == {
        "Artifact", "ArtifactNode", "LineageGraph", "MetricPoint", "RunHeader", "RunNode",
        "RunRecord", "RunWriter", "as_json", "as_lines", "as_rich", "follow_events",
        "lineage", "list_runs", "new_run_id", "open_run", "read_run", "start_run",
    }  # fmt: skip
    assert set(mirrors.__all__) == {
        "Mirror", "SyncResult", "installed_mirrors", "known_mirrors", "mirror_class", "rebuild",
        "sync_pending", "sync_run",
    }  # fmt: skip
    assert set(storage.__all__) == {
        "FORMATS", "Workspace", "append_line", "digest_bytes", "digest_file", "digest_tree",
        "document", "exclusive", "find_workspace", "is_held", "is_local", "join", "local_path",
        "normalise", "publish_dir", "quick_digest", "read_document",
        "verify_file", "write_bytes", "write_document", "write_json", "write_text",
    }  # fmt: skip
    for module in (tracking, mirrors, storage):
        assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.process
def test_importing_them_imports_nothing_heavy() -> None:
    heavy = ["tensorflow", "keras", "mlflow", "fsspec", "numpy", "pandas", "rich", "asyncio"]
    code = (
        "import sys, timonel.tracking, timonel.tracking.mirrors\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert shown == "[]\n"
