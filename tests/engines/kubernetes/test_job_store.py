"""Files of a job's folder, copied from the bucket."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.engines.kubernetes.shared import Pod
from timonel.engines.kubernetes.files.changes import Change, SharedContents
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.engines.kubernetes.job_store import fetch_files
from timonel.storage import Workspace
from timonel.storage.local_copy import LocalCopy
from timonel.storage.object_store import ObjectStore


def test_files_are_copied_as_they_grow(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store, root, target = ObjectStore(uri), tmp_path / "copy", tmp_path / "target"
    workspace = Workspace(root, uri, LocalCopy(store, root))
    hub, index = Pod(tmp_path / "hub", store), IndexStore(store, "one")
    events = hub.path("jobs/one/logs.d/events.tfevents.1.chief")
    hub.path("jobs/one/model.bin").write_bytes(b"model")

    def fetched(content: bytes) -> None:
        with events.open("ab") as file:
            file.write(content)
        for change in hub.folder.scan():
            index.add(change)
        index.save()
        fetch_files(workspace, "one", target, lambda name: "tfevents" in name)

    fetch_files(workspace, "one", target, lambda _: True)
    assert not target.exists(), "nothing is in the bucket yet"
    fetched(b"a" * 100_000)
    fetched(b"b")
    (found,) = (path for path in target.rglob("*") if path.is_file())
    assert found.relative_to(target).as_posix() == "logs.d/events.tfevents.1.chief"
    assert found.read_bytes() == events.read_bytes()


def test_names_that_lead_out_of_the_target_are_skipped(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store, target = ObjectStore(uri), tmp_path / "parent" / "target"
    index = IndexStore(store, "one")
    part = SharedContents(store, "one").add(b"content")
    for name in ("jobs/one/../out", "jobs/one//out", "jobs/two/out", "/out", "jobs/one/in"):
        index.add(Change(name, (part,)))
    index.save()
    workspace = Workspace(tmp_path, uri, LocalCopy(store, tmp_path))
    fetch_files(workspace, "one", target, lambda _: True)
    assert [path.name for path in (tmp_path / "parent").rglob("*") if path.is_file()] == ["in"]
