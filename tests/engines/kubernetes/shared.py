"""A coordinator and its pods, whose messages are delivered when a test says so."""

from __future__ import annotations

import uuid
from pathlib import Path

from timonel.engines.kubernetes.files.changes import (
    Change,
    Index,
    decode_change,
    decode_index,
    encode_change,
    encode_index,
)
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.storage.object_store import ObjectStore

FOLDERS = ("jobs/one", "runs/one")


class Pod:
    """A process with its copy of the folders."""

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self.root = root
        self.folder = SharedFolder(root, FOLDERS, store, "one")
        self.sent: list[Change] = []
        self.received: list[Change] = []

    def scan(self) -> None:
        self.sent += self.folder.scan()

    def receive(self) -> None:
        if self.received:
            self.sent += self.folder.apply(self.received.pop(0))

    def path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def tree(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }


class Group:
    """Pods and their coordinator."""

    def __init__(self, root: Path, uri: str | None = None, pods: int = 2) -> None:
        self.root = root
        self.store = ObjectStore(uri or f"memory://{uuid.uuid4().hex}", patience_s=0.0)
        self.restarts = 0
        self.start_hub()
        self.pods = [Pod(root / f"pod-{number}", self.store) for number in range(pods)]

    def start_hub(self) -> None:
        """Start the next coordinator, in an empty folder."""
        self.hub_root = self.root / f"hub-{self.restarts}"
        self.restarts += 1
        self.hub = SharedFolder(self.hub_root, FOLDERS, self.store, "one", is_hub=True)
        self.index = IndexStore(self.store, "one")
        assert self.hub.reset(self.index.load()) == []
        self.index.save()

    def restart_hub(self) -> None:
        """Lose the coordinator with all messages on the way."""
        self.start_hub()
        for pod in self.pods:
            self.join(pod)

    def join(self, pod: Pod) -> None:
        pod.sent.clear()
        pod.received.clear()
        index = decode_index(encode_index(self.index.index))
        pod.sent += pod.folder.reset(index)

    def send(self, pod: Pod) -> None:
        """Let the coordinator receive a pod's next change."""
        if pod.sent:
            self.order(self.hub.apply(decode_change(encode_change(pod.sent.pop(0)))))

    def order(self, changes: list[Change]) -> None:
        for change in map(self.index.add, changes):
            for pod in self.pods:
                pod.received.append(decode_change(encode_change(change)))

    def settle(self) -> None:
        """Deliver everything."""
        is_busy = True
        while is_busy:
            self.order(self.hub.scan())
            for pod in self.pods:
                pod.scan()
                while pod.sent:
                    self.send(pod)
            is_busy = any(pod.received for pod in self.pods)
            for pod in self.pods:
                while pod.received:
                    pod.receive()
                is_busy |= bool(pod.sent)

    def hub_tree(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.hub_root)): path.read_bytes()
            for path in self.hub_root.rglob("*")
            if path.is_file()
        }

    def indexed(self) -> dict[str, bytes]:
        """Return the content that the index says."""
        files = self.index.index.files
        return {name: content_of(self.store, change) for name, change in files.items()}

    def check_equal(self) -> None:
        """Check that all folders are equal, but for the order of lines in pods."""
        expected = self.hub_tree()
        assert self.indexed() == expected
        for pod in self.pods:
            assert _sorted(pod.tree()) == _sorted(expected)
        self.index.save()
        fresh = Pod(self.root / uuid.uuid4().hex, self.store)
        loaded = IndexStore(self.store, "one").load()
        assert fresh.folder.reset(loaded) == []
        assert fresh.tree() == expected


def content_of(store: ObjectStore, change: Change) -> bytes:
    return b"".join(
        store.read(f"jobs/one/files/{part.digest}") if part.data is None else part.data
        for part in change.parts or ()
    )


def index_of(*changes: Change) -> Index:
    return Index(len(changes), {change.name: change for change in changes})


def _sorted(tree: dict[str, bytes]) -> dict[str, object]:
    return {
        name: sorted(content.splitlines()) if name.endswith(".jsonl") else content
        for name, content in tree.items()
    }
