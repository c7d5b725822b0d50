"""Shared folders become equal, whatever their processes do, and lose nothing."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buckets import open_bucket
from tests.engines.kubernetes.shared import Group, Pod, index_of
from tests.rights import limited_rights
from timonel.engines.kubernetes.files import changes, index_store
from timonel.engines.kubernetes.files import folder as shared_folder
from timonel.engines.kubernetes.files import records as file_records
from timonel.engines.kubernetes.files.changes import Change, Part, decode_change, encode_change
from timonel.errors import CorruptError, InputError

JOB, EVENTS = "jobs/one", "runs/one/events.jsonl"
SMALL = 16


@contextmanager
def small_limits() -> Iterator[None]:
    """Make objects of all content above a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (changes, file_records, index_store):
            patch.setattr(module, "INLINE_BYTES", SMALL)
        # The file system in memory mixes parallel reads of one object.
        patch.setattr(shared_folder, "_PARALLEL", 1)
        yield


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with small_limits():
        yield Group(tmp_path)


NAMES = st.sampled_from([f"{JOB}/a", f"{JOB}/checkpoints/1/b", f"{JOB}/checkpoints/1/c"])
GROWING = st.sampled_from([EVENTS, f"{JOB}/more.jsonl"])
CONTENTS = st.sampled_from([b"", b"1", b"2", b"small", b"larger than small ones", b"other" * 9])
HUB = 2
PODS, WRITERS = st.integers(0, 1), st.integers(0, HUB)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["write", "overwrite"]), WRITERS, NAMES, CONTENTS),
    st.tuples(st.just("remove"), WRITERS, NAMES),
    st.tuples(st.just("create"), WRITERS),
    st.tuples(st.just("log"), WRITERS, GROWING),
    st.tuples(st.just("scan"), WRITERS),
    st.tuples(st.sampled_from(["send", "receive"]), PODS),
)


class Actor:
    """Carries out actions, and knows what must not be lost."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.created: dict[str, bytes] = {}
        self.lines: dict[str, list[bytes]] = {}

    def check(self) -> None:
        """Check that the folders are equal, and contain all lines and created files."""
        self.group.check_equal()
        tree = self.group.hub_tree()
        for name, lines in self.lines.items():
            assert sorted(tree[name].splitlines()) == sorted(lines)
        assert self.created.items() <= tree.items()

    def do(self, action: tuple[Any, ...]) -> None:
        match action:
            case "write", writer, name, content:
                write(self.path(writer, name), content)
            case "overwrite", writer, name, content:
                self.path(writer, name).write_bytes(content)
            case "remove", writer, name:
                self.path(writer, name).unlink(missing_ok=True)
            case "create", writer:
                name = f"{JOB}/created/{len(self.created)}"
                self.created[name] = name.encode()
                write(self.path(writer, name), name.encode())
            case "log", writer, name:
                lines = self.lines.setdefault(name, [])
                lines.append(b"line %d of all" % len(lines))
                with self.path(writer, name).open("ab") as file:
                    file.write(lines[-1] + b"\n")
            case step, pod:
                self.deliver(step, pod)

    def deliver(self, step: str, pod: int) -> None:
        if pod == HUB:
            self.group.order(self.group.hub.scan())
        elif step == "send":
            self.group.send(self.group.pods[pod])
        else:
            getattr(self.group.pods[pod], step)()

    def path(self, writer: int, name: str) -> Path:
        root = self.group.hub_root if writer == HUB else self.group.pods[writer].root
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        return root / name


def write(path: Path, content: bytes) -> None:
    aside = path.with_name(".tmp-test")
    aside.write_bytes(content)
    aside.replace(path)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(ACTIONS, max_size=30))
def test_random_edits_end_in_equal_folders(actions: list[tuple[Any, ...]]) -> None:
    with small_limits(), tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        actor = Actor(group)
        for action in actions:
            actor.do(action)
        group.settle()
        actor.check()


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.one_of(ACTIONS, st.just(("restart",)), st.just(("save",))), max_size=30))
def test_a_lost_coordinator_loses_no_file_of_a_pod(actions: list[tuple[Any, ...]]) -> None:
    with small_limits(), tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        actor = Actor(group)
        for action in actions:
            if action == ("restart",):
                group.restart_hub()
            elif action == ("save",):
                group.index.save()
            elif action[1] != HUB:
                actor.do(action)
        group.settle()
        for pod in group.pods:
            group.join(pod)
        group.settle()
        actor.check()


@settings(max_examples=30)
@given(st.lists(ACTIONS, max_size=12), st.lists(ACTIONS, max_size=12))
def test_a_coordinators_folder_becomes_equal_to_an_index(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]
) -> None:
    with small_limits(), tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        actor = Actor(group)
        for action in before:
            actor.do(action)
        group.settle()
        expected = group.hub_tree()
        for action in after:
            if action[1] == HUB and action[0] != "scan":
                actor.do(action)
        (group.hub_root / JOB / "extra").mkdir(parents=True)
        (group.hub_root / JOB / "extra" / "file").write_text("x")
        assert group.hub.reset(group.index.index) == []
        assert group.hub_tree() == expected
        assert not (group.hub_root / JOB / "extra").exists()
        assert group.hub.scan() == []


def test_only_new_bytes_of_growing_files_travel(group: Group) -> None:
    pod, other = group.pods
    for name in (EVENTS, f"{JOB}/tensorboard/events.out.tfevents.1.host"):
        path = pod.path(name)
        path.write_bytes(b"first line that is long\n")
        group.settle()
        inode = (other.root / name).stat().st_ino
        with path.open("ab") as file:
            file.write(b"next\n")
        (change,) = pod.folder.scan()
        assert change.is_append
        assert [part.data for part in change.parts or ()] == [b"next\n"]
        pod.sent.append(change)
        group.settle()
        assert (other.root / name).read_bytes() == b"first line that is long\nnext\n"
        assert (other.root / name).stat().st_ino == inode
        path.write_bytes(b"second\n")
        group.settle()
        assert (other.root / name).read_bytes() == b"second\n"
    group.check_equal()


@pytest.mark.parametrize("more", [b"", b"more\n"])
@pytest.mark.parametrize("name", [EVENTS, f"{JOB}/events.out.tfevents.1.host"])
def test_a_growing_file_that_is_rewritten_travels_as_a_whole(
    group: Group, name: str, more: bytes
) -> None:
    pod, other = group.pods
    rest = b"line\n" * 2000
    pod.path(name).write_bytes(b"1\n" + rest)
    group.settle()
    with other.path(name).open("ab") as file:
        file.write(b"2\n")
    group.settle()
    with pod.path(name).open("r+b") as file:
        file.write(b"3\n")
        file.seek(0, os.SEEK_END)
        file.write(more)
    os.utime(pod.path(name), (1, 1))
    group.settle()
    group.check_equal()
    assert group.hub_tree()[name] == b"3\n" + rest + b"2\n" + more
    with pod.path(name).open("ab") as file:
        file.write(b"4\n")
    (change,) = pod.folder.scan()
    assert [part.data for part in change.parts or ()] == [b"4\n"]


def test_a_line_travels_once_it_is_complete(group: Group) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\nincompl")
    group.settle()
    assert (other.root / EVENTS).read_bytes() == b"one\n"
    other.path(EVENTS).write_bytes(b"one\ntwo\n")
    group.settle()
    with pod.path(EVENTS).open("ab") as file:
        file.write(b"three\n")
    group.settle()
    assert b"incompl\n" in pod.path(EVENTS).read_bytes()
    assert sorted(group.hub_tree()[EVENTS].split()) == [b"incompl", b"one", b"three", b"two"]


def test_an_incomplete_last_line_travels_when_its_writer_has_ended(group: Group) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\ntwo")
    group.settle()
    pod.sent += pod.folder.scan(to_end=True)
    group.settle()
    assert (other.root / EVENTS).read_bytes() == b"one\ntwo"
    with pod.path(EVENTS).open("ab") as file:
        file.write(b"\nthree")
    pod.sent += pod.folder.scan(to_end=True)
    group.settle()
    group.check_equal()
    assert group.hub_tree()[EVENTS] == b"one\ntwo\nthree"


def test_an_incomplete_last_line_survives_a_lost_coordinator(group: Group) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\ntwo")
    group.settle()
    group.index.save()
    group.restart_hub()
    group.settle()
    assert pod.path(EVENTS).read_bytes() == b"one\ntwo"
    group.check_equal()
    other.path(EVENTS).write_bytes(b"one\ntwo\nthree\n")
    group.restart_hub()
    group.settle()
    group.check_equal()
    assert group.hub_tree()[EVENTS] == b"one\ntwo\nthree\n"


def test_equal_lines_survive_a_lost_coordinator(group: Group) -> None:
    pod, other = group.pods
    other.path(EVENTS).write_bytes(b"first\n")
    other.scan()
    group.send(other)
    pod.path(EVENTS).write_bytes(b"same\n")
    group.settle()
    group.index.save()
    assert pod.path(EVENTS).read_bytes() == b"same\nfirst\n"
    with pod.path(EVENTS).open("ab") as file:
        file.write(b"same\n" * 2)
    group.settle()
    group.restart_hub()
    group.settle()
    group.check_equal()
    assert group.hub_tree()[EVENTS] == b"first\n" + b"same\n" * 3


@pytest.mark.parametrize("is_hub", [False, True])
def test_a_line_written_just_before_another_is_appended_is_not_lost(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_hub: bool
) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\n")
    group.settle()
    append = shared_folder.append_to

    def late(path: Path, data: bytes, *, lines: bool) -> file_records.Appended:
        if path.is_relative_to(group.hub_root if is_hub else other.root) and not late_lines:
            late_lines.append(path)
            with path.open("ab") as file:
                file.write(b"late\n")
        return append(path, data, lines=lines)

    late_lines: list[Path] = []
    monkeypatch.setattr(shared_folder, "append_to", late)
    with pod.path(EVENTS).open("ab") as file:
        file.write(b"two\n")
    group.settle()
    assert len(late_lines) == 1
    group.check_equal()
    assert sorted(group.hub_tree()[EVENTS].split()) == [b"late", b"one", b"two"]


def test_lines_follow_the_content_that_replaced_their_file(group: Group) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\n")
    group.settle()
    write(pod.path(EVENTS), b"new\n")
    pod.scan()
    group.send(pod)
    with other.path(EVENTS).open("ab") as file:
        file.write(b"two\n")
    group.settle()
    group.check_equal()
    assert group.hub_tree()[EVENTS] == b"new\ntwo\n"


def test_a_long_history_has_few_parts(group: Group) -> None:
    pod = group.pods[0]
    for number in range(200):
        with pod.path(EVENTS).open("ab") as file:
            file.write(b"line %d\n" % number)
        pod.scan()
        group.send(pod)
    assert len(group.index.index.files[EVENTS].parts or ()) < 12
    group.settle()
    group.check_equal()
    group.index.collect(0.0)
    group.index.collect(index_store.UNUSED_S)
    used = [part for part in group.index.index.files[EVENTS].parts or () if part.data is None]
    assert len(group.store.find("jobs/one/files")) == len(used)
    group.check_equal()


def test_files_travel_in_the_order_of_writing(group: Group) -> None:
    pod = group.pods[0]
    for second, name in enumerate(["c", "a", "b"]):
        pod.path(f"{JOB}/export/{name}").write_text(name)
        os.utime(pod.path(f"{JOB}/export/{name}"), (second, second))
    pod.path(f"{JOB}/old").write_text("x")
    names = [Path(change.name).name for change in pod.folder.scan()]
    assert names == ["c", "a", "b", "old"]
    pod.path(f"{JOB}/old").unlink()
    pod.path(f"{JOB}/new").write_text("x")
    found = pod.folder.scan()
    assert [(change.name, change.parts is None) for change in found] == [
        (f"{JOB}/new", False),
        (f"{JOB}/old", True),
    ]


class Writer:
    """A program that writes, each time after the last time stamp."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.path(f"{JOB}/first")
        self.path(f"{JOB}/sub/second")

    def path(self, name: str) -> Path:
        return self.pod.path(name)

    def write(self, name: str, content: str = "x", *, mode: str = "w") -> None:
        probe = self.pod.path(".probe")
        probe.touch()
        before = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == before:
            probe.touch()
        with self.path(name).open(mode) as file:
            file.write(content)

    def scan(self, action: Callable[[], None], *, listing: int = 1) -> list[str]:
        """Scan, and do something just before a folder is listed for the n-th time."""
        scandir, left = os.scandir, [action] + [lambda: None] * (listing - 1)

        def acting(folder: Path) -> Any:
            if folder == self.pod.root / JOB / "sub" and left:
                left.pop()()
            return scandir(folder)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "scandir", acting)
            names = [change.name for change in self.pod.folder.scan()]
        assert not left
        return names


def test_a_file_does_not_travel_before_one_that_was_written_earlier(group: Group) -> None:
    writer = Writer(group.pods[0])
    data, state = f"{JOB}/data", f"{JOB}/sub/state"

    def write() -> None:
        writer.write(data)
        writer.write(state)

    writer.write(f"{JOB}/before")
    assert writer.scan(write) == [f"{JOB}/before"]
    assert [change.name for change in group.pods[0].folder.scan()] == [data, state]

    # A removal waits as well.
    def replace_data() -> None:
        writer.write(f"{JOB}/newer")
        writer.path(state).unlink()

    assert writer.scan(replace_data) == []
    changes = group.pods[0].folder.scan()
    assert [change.name for change in changes] == [f"{JOB}/newer", state]


@pytest.mark.parametrize("state", [f"{JOB}/sub/state", f"{JOB}/sub/state.jsonl"])
def test_what_is_written_after_the_scan_began_does_not_travel(
    group: Group, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    pod = group.pods[0]
    writer, read = Writer(pod), file_records.read_draft
    writer.write(state, "1\n")

    def late(*args: Any, **options: Any) -> file_records.Draft | None:
        if not writer.path(f"{JOB}/data").exists():
            writer.write(f"{JOB}/data")
            writer.write(state, "2\n", mode="a")
        return read(*args, **options)

    monkeypatch.setattr(shared_folder, "read_draft", late)
    first = pod.folder.scan()
    assert all(part.data == b"1\n" for change in first for part in change.parts or ())
    assert [change.name for change in pod.folder.scan()] == [f"{JOB}/data", state]


def test_files_that_are_always_written_do_not_stop_the_others(group: Group) -> None:
    writer = Writer(group.pods[0])
    log, beat = f"{JOB}/sub/log.jsonl", f"{JOB}/sub/beat"

    def write() -> None:
        writer.write(log, "line\n", mode="a")
        writer.write(beat)

    write()
    for number in range(3):
        writer.write(f"{JOB}/{number}")
        write()
        assert writer.scan(write, listing=2) == [f"{JOB}/{number}", log]


@pytest.mark.parametrize("moment", ["listing", "reading", "upload"])
def test_a_file_that_is_always_written_does_not_stop_removals(
    group: Group, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pod = group.pods[0]
    writer = Writer(pod)
    beat, old, new = f"{JOB}/sub/beat", f"{JOB}/old", f"{JOB}/new"
    read, upload = shared_folder.read_draft, group.store.upload

    def write() -> None:
        writer.write(beat, "large" * 10)

    def reading(path: Path, name: str, *args: Any, **options: Any) -> Any:
        if name == beat:
            write()
        return read(path, name, *args, **options)

    def uploading(files: dict[str, Path]) -> None:
        write()
        upload(files)

    def scan() -> list[str]:
        if moment == "listing":
            return writer.scan(write, listing=2)
        with monkeypatch.context() as patch:
            if moment == "reading":
                patch.setattr(shared_folder, "read_draft", reading)
            else:
                patch.setattr(group.store, "upload", uploading)
            return [change.name for change in pod.folder.scan()]

    writer.write(old)
    group.settle()
    write()
    writer.write(new)
    pod.path(old).unlink()
    names = scan()
    # What was written before the removal comes before it.
    assert old not in names
    write()
    assert [*names, *scan()] == [new, old]


def test_a_file_travels_when_it_appears(group: Group) -> None:
    writer = Writer(group.pods[0])
    writer.write(f"{JOB}/.tmp-state")
    writer.write(f"{JOB}/data")
    writer.write(f"{JOB}/.tmp-other")
    writer.path(f"{JOB}/.tmp-state").rename(writer.path(f"{JOB}/state"))
    names = [change.name for change in group.pods[0].folder.scan()]
    assert names == [f"{JOB}/data", f"{JOB}/state"]


def test_a_removed_folder_is_removed_everywhere(group: Group) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/checkpoints/1/data").write_text("x")
    pod.path(f"{JOB}/checkpoints/2/data").write_text("x")
    group.settle()
    shutil.rmtree(pod.root / JOB / "checkpoints" / "1")
    group.settle()
    assert [path.name for path in (other.root / JOB / "checkpoints").iterdir()] == ["2"]
    shutil.rmtree(pod.root / JOB / "checkpoints")
    group.settle()
    assert not list((other.root / JOB).iterdir())


def test_a_file_takes_the_place_of_a_folder_and_back(group: Group) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/x/y").write_text("in a folder")
    group.settle()
    shutil.rmtree(pod.root / JOB / "x")
    pod.path(f"{JOB}/x").write_text("a file")
    group.settle()
    assert (other.root / JOB / "x").read_text() == "a file"
    pod.path(f"{JOB}/x").unlink()
    pod.path(f"{JOB}/x/y").write_text("again")
    group.settle()
    group.check_equal()
    assert (other.root / JOB / "x" / "y").read_text() == "again"


def test_files_of_one_process_are_not_shared(group: Group) -> None:
    pod = group.pods[0]
    local = [
        f"{JOB}/.scale.lock",
        f"{JOB}/export/.tmp-1-abc/x",
        "runs/one/.push.lock",
        "runs/one/mirrors/state",
        "runs/two/events.jsonl",
        "models/x",
    ]
    for name in local:
        pod.path(name).write_text("x")
    pod.path(f"{JOB}/link").symlink_to("/etc/passwd")
    pod.path("runs/one/source").write_text("x")
    assert [change.name for change in pod.folder.scan()] == ["runs/one/source"]
    group.join(pod)
    assert all((pod.root / name).exists() for name in local)


def test_programs_may_use_all_names_in_the_folder_of_a_job(group: Group) -> None:
    pod, other = group.pods
    names = [f"{JOB}/{name}/x" for name in ("logs", "log", "files", "source", "tasks", "sidecars")]
    for name in names:
        pod.path(name).write_text(name)
    group.settle()
    assert other.tree() == {name: name.encode() for name in names}
    group.restart_hub()
    group.settle()
    group.check_equal()


def test_each_symbolic_link_is_logged_once(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/checkpoints/1/data").write_text("x")
    pod.path(f"{JOB}/checkpoints/latest").symlink_to("1")
    pod.path(f"{JOB}/data").symlink_to("checkpoints/1/data")
    pod.path(f"{JOB}/.tmp-1-abc/link").symlink_to("/etc/passwd")
    group.settle()
    group.settle()
    assert other.tree() == {f"{JOB}/checkpoints/1/data": b"x"}
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"not sharing '{JOB}/{name}': it is a symbolic link; write a copy of the file"
        for name in ("checkpoints/latest", "data")
    ]


def test_files_below_a_link_of_one_process_stay_in_the_others(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pod, other = group.pods
    outside = tmp_path / "outside"
    outside.mkdir()
    other.path(f"{JOB}/kept").write_text("x")
    other.path(f"{JOB}/ckpt").symlink_to(outside)
    pod.path(f"{JOB}/ckpt/model.bin").write_text("weights")
    pod.path(f"{JOB}/ckpt/log.jsonl").write_text("1\n")
    expected = {f"{JOB}/ckpt/model.bin": b"weights", f"{JOB}/ckpt/log.jsonl": b"1\n"}
    for join in (False, True, True):
        group.settle()
        assert list(outside.iterdir()) == []
        assert pod.tree() == {**expected, f"{JOB}/kept": b"x"}
        if join:
            group.join(other)
    assert [record.getMessage() for record in caplog.records] == [
        f"not sharing '{JOB}/ckpt': it is a symbolic link; write a copy of the file"
    ]
    pod.path(f"{JOB}/ckpt/model.bin").unlink()
    (outside / "model.bin").write_text("own")
    group.settle()
    group.join(other)
    assert (outside / "model.bin").read_text() == "own"
    # The folder is shared again once it is one.
    (other.root / JOB / "ckpt").unlink()
    group.settle()
    group.join(other)
    group.check_equal()
    assert group.hub_tree() == {f"{JOB}/ckpt/log.jsonl": b"1\n", f"{JOB}/kept": b"x"}


@pytest.mark.parametrize("name", ["ckpt/state.jsonl", "ckpt/model.bin"])
@pytest.mark.parametrize("link", ["ckpt", "name"])
@pytest.mark.parametrize("has_arrived", [True, False])
def test_a_shared_file_that_a_link_replaces_is_not_removed(
    group: Group, tmp_path: Path, name: str, link: str, has_arrived: bool
) -> None:
    pod, other = group.pods
    other.path(f"{JOB}/{name}").write_text("1\n")
    other.scan()
    if has_arrived:
        group.settle()
    moved = other.root / JOB / (name if link == "name" else link)
    shutil.move(moved, tmp_path / "moved")
    moved.symlink_to(tmp_path / "moved")
    group.settle()
    group.join(other)
    group.settle()
    assert pod.tree() == {f"{JOB}/{name}": b"1\n"}
    with pod.path(f"{JOB}/{name}").open("a") as file:
        file.write("2\n")
    group.settle()
    assert (other.root / JOB / name).read_text() == "1\n"
    pod.path(f"{JOB}/{name}").unlink()
    group.settle()
    group.join(other)
    assert (other.root / JOB / name).read_text() == "1\n"
    moved.unlink()
    shutil.move(tmp_path / "moved", moved)
    group.settle()
    group.check_equal()
    assert group.hub_tree() == {f"{JOB}/{name}": b"1\n"}


def test_permissions_travel(group: Group) -> None:
    pod, other = group.pods
    path = pod.path(f"{JOB}/run.sh")
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    group.settle()
    assert (other.root / JOB / "run.sh").stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    group.settle()
    assert (other.root / JOB / "run.sh").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        f"{JOB}/../../x",
        f"{JOB}/./x",
        f"{JOB}//x",
        f"{JOB}",
        f"{JOB}/",
        "jobs/two/x",
        "models/x",
        f"{JOB}/a\0b",
        f"{JOB}/.ssh/x",
        "runs/one/mirrors/x",
        "",
    ],
)
def test_names_outside_the_folders_are_refused(
    group: Group, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    pod = group.pods[0]
    before = sorted(group.root.rglob("*"))
    for change in (Change(name, ()), Change(name, None), Change(name, (), is_append=True)):
        assert pod.folder.apply(change) == []
    assert [record.args for record in caplog.records] == [
        (name, "it is not in a shared folder of the job")
    ]
    pod.path(f"{JOB}/x").write_text("x")
    assert [change.name for change in pod.folder.reset(index_of(Change(name, ())))] == [f"{JOB}/x"]
    (pod.root / JOB / "x").unlink()
    pod.folder.reset(index_of())
    for folder in (pod.root / JOB, pod.root / "jobs", pod.root):
        folder.rmdir()
    assert sorted(group.root.rglob("*")) == before
    assert Path("/etc/passwd").exists()


def test_an_unreadable_file_does_not_stop_the_others(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    pod, other = group.pods
    for name in ("a", "b", "folder/c"):
        pod.path(f"{JOB}/{name}").write_text("old")
    group.settle()
    with limited_rights():
        for name in ("a", "b"):
            pod.path(f"{JOB}/{name}").write_text("new")
        pod.path(f"{JOB}/a").chmod(0)
        pod.path(f"{JOB}/folder").chmod(0)
        group.settle()
        group.settle()
        assert other.path(f"{JOB}/b").read_text() == "new"
        assert other.path(f"{JOB}/a").read_text() == "old"
        assert other.path(f"{JOB}/folder/c").read_text() == "old"
        assert sorted(record.args or () for record in caplog.records) == [
            (f"{JOB}/a", "Permission denied"),
            (f"{JOB}/folder", "Permission denied"),
        ]
        pod.path(f"{JOB}/a").chmod(0o600)
        pod.path(f"{JOB}/folder").chmod(0o700)
        group.settle()
    group.check_equal()


def test_an_unwritable_file_does_not_stop_the_others(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    pod, other = group.pods
    other.path(f"{JOB}/locked/a").write_text("old")
    group.settle()
    with limited_rights():
        other.path(f"{JOB}/locked").chmod(0o500)
        pod.path(f"{JOB}/locked/a").write_text("new")
        pod.path(f"{JOB}/locked/b").write_text("new")
        pod.path(f"{JOB}/c").write_text("new")
        group.settle()
        assert (other.root / JOB / "c").read_text() == "new"
        assert {
            name: content for name, content in group.hub_tree().items() if content == b"old"
        } == {}
        pod.path(f"{JOB}/locked/a").unlink()
        group.join(other)
        group.settle()
        assert set(group.hub_tree()) == {f"{JOB}/locked/b", f"{JOB}/c"}
        other.path(f"{JOB}/locked").chmod(0o700)
        group.join(other)
    group.settle()
    group.check_equal()
    assert {(record.args or ())[0] for record in caplog.records} == {
        f"{JOB}/locked/a",
        f"{JOB}/locked/b",
    }


def test_a_coordinator_sends_on_what_it_cannot_write(group: Group) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/locked/a").write_text("old")
    group.settle()
    with limited_rights():
        (group.hub_root / JOB / "locked").chmod(0o500)
        pod.path(f"{JOB}/locked/a").write_text("new")
        pod.path(f"{JOB}/b").write_text("new")
        group.settle()
    assert other.tree() == {f"{JOB}/locked/a": b"new", f"{JOB}/b": b"new"}
    group.restart_hub()
    group.settle()
    group.check_equal()


@contextmanager
def limited_size(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("content", [b"one\n", b"one\nincompl"])
def test_an_append_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    for size in (len(content), 30):
        with limited_size(size), pytest.raises(OSError, match="large"):
            file_records.append_to(path, b"two\n" * 10, lines=True)
        assert path.read_bytes() == content
    file_records.append_to(path, b"two\n" * 10, lines=True)
    assert path.read_bytes() == content.removesuffix(b"\n") + b"\n" + b"two\n" * 10


def test_lines_that_do_not_fit_here_change_nothing_elsewhere(group: Group) -> None:
    pod, other = group.pods
    pod.path(EVENTS).write_bytes(b"one\n")
    group.settle()
    with pod.path(EVENTS).open("ab") as file:
        file.write(b"".join(b"line %d\n" % number for number in range(40)))
    expected = pod.path(EVENTS).read_bytes()
    pod.scan()
    group.send(pod)
    with limited_size(100):
        for _ in range(2):
            with suppress(InputError):
                assert other.folder.apply(other.received[0]) == []
    assert other.folder.scan() == []
    group.settle()
    assert group.hub_tree()[EVENTS] == pod.path(EVENTS).read_bytes() == expected


def test_a_failed_download_is_an_error_and_may_be_repeated(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/x").write_bytes(b"large" * 10)
    (change,) = pod.folder.scan()
    blob = group.store.stat(f"jobs/one/files/{(change.parts or ())[0].digest}")
    assert blob is not None
    with monkeypatch.context() as patch:
        patch.setattr(group.store, "stat", lambda _: replace(blob, size=1))
        with pytest.raises(CorruptError, match="try again"):
            other.folder.apply(change)
    other.folder.apply(change)
    assert (other.root / JOB / "x").read_bytes() == b"large" * 10


def test_names_that_the_file_system_refuses_are_left_out(group: Group) -> None:
    pod = group.pods[0]
    for name in (f"{JOB}/{'x' * 300}", f"{JOB}/{'x' * 300}/y"):
        changes = [Change(name, ()), Change(name, None), Change(name, (), is_append=True)]
        for change in changes:
            assert pod.folder.apply(change) == []
        assert pod.folder.reset(index_of(Change(name, ()), Change(f"{JOB}/z", ()))) == []
    assert pod.tree() == {f"{JOB}/z": b""}


def test_damaged_messages_are_refused(group: Group) -> None:
    pod = group.pods[0]
    pod.path(f"{JOB}/x").write_text("content")
    good = encode_change(pod.folder.scan()[0])
    part = good["parts"][0]
    assert decode_change(good).name == f"{JOB}/x"
    for damaged in (
        {},
        {**good, "parts": 3},
        {**good, "parts": [{**part, "digest": "../../x"}]},
        {**good, "parts": [{**part, "data": "????"}]},
        {**good, "parts": [{**part, "data": "b3RoZXI="}]},
        {**good, "version": "latest"},
    ):
        with pytest.raises(CorruptError, match="invalid change"):
            decode_change(damaged)


def test_damaged_objects_are_left_out(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    pod, other = group.pods
    pod.path(f"{JOB}/x").write_bytes(b"large" * 10)
    (change,) = pod.folder.scan()
    (part,) = change.parts or ()
    assert part.data is None
    group.store.write(f"jobs/one/files/{part.digest}", b"wrong" * 10)
    missing = replace(change, name=f"{JOB}/y", parts=(Part(50, "0" * 64),) * 2)
    for each in (change, missing):
        assert other.folder.apply(each) == []
        assert group.hub.apply(each) == []
    good = Change(f"{JOB}/z", ())
    assert other.folder.reset(index_of(change, missing, good)) == []
    assert other.tree() == {f"{JOB}/z": b""}
    assert "is damaged" in caplog.text
    assert "not found" in caplog.text


def test_large_content_is_uploaded_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[str] = []
    upload = group.store.upload

    def counted(files: dict[str, Path]) -> None:
        uploaded.extend(files)
        upload(files)

    monkeypatch.setattr(group.store, "upload", counted)
    pod = group.pods[0]
    for name in ("a", "b"):
        pod.path(f"{JOB}/{name}").write_bytes(b"large" * 10)
    pod.scan()
    pod.path(f"{JOB}/c").write_bytes(b"large" * 10)
    group.settle()
    assert len(uploaded) == 1
    group.check_equal()


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, other = group.pods
    path = pod.path(f"{JOB}/x")
    path.write_bytes(b"first" * 10)
    upload = group.store.upload

    def replacing(files: dict[str, Path]) -> None:
        write(path, b"other" * 10)
        upload(files)

    with monkeypatch.context() as patch:
        patch.setattr(group.store, "upload", replacing)
        assert pod.folder.scan() == []
    assert group.store.find("jobs/one/files") == {}
    group.settle()
    assert (other.root / JOB / "x").read_bytes() == b"other" * 10


def test_a_file_that_changes_while_it_is_read_is_left_for_later(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, other = group.pods
    path = pod.path(f"{JOB}/x")
    path.write_bytes(b"first" * 10)
    digest = file_records.hashlib.file_digest

    def growing(file: Any, name: str) -> Any:
        with path.open("ab") as end:
            end.write(b"more")
        return digest(file, name)

    with monkeypatch.context() as patch:
        patch.setattr(file_records.hashlib, "file_digest", growing)
        assert pod.folder.scan() == []
        # A change of another process does not replace what is being written.
        other.path(f"{JOB}/x").write_text("other")
        (change,) = other.folder.scan()
        assert pod.folder.apply(change) == []
    assert path.read_bytes() == b"first" * 10 + b"more" * 2
    group.settle()
    assert pod.folder.scan() == []


def test_what_was_found_before_an_error_is_not_lost(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = group.pods[0]
    pod.path(f"{JOB}/small").write_text("x")
    pod.path(f"{JOB}/large").write_bytes(b"large" * 10)

    def failing(_: object) -> None:
        raise InputError("the bucket is away")

    with monkeypatch.context() as patch:
        patch.setattr(group.store, "upload", failing)
        with pytest.raises(InputError, match="away"):
            pod.folder.scan()
    assert {change.name for change in pod.folder.scan()} == {f"{JOB}/small", f"{JOB}/large"}


def test_a_pod_that_was_away_does_not_undo_what_others_did(group: Group) -> None:
    away, other = group.pods
    away.path(f"{JOB}/x").write_text("old")
    away.path(f"{JOB}/y").write_text("old")
    group.settle()
    away.path(f"{JOB}/x").write_text("stale")
    other.path(f"{JOB}/x").write_text("new")
    other.path(f"{JOB}/y").unlink()
    other.scan()
    while other.sent:
        group.send(other)
    group.join(away)
    group.settle()
    group.check_equal()
    assert group.hub_tree() == {f"{JOB}/x": b"new"}


@pytest.mark.parametrize("second", [1, 1 << 33])
def test_unchanged_files_are_not_read(
    group: Group, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    # Files that were just written are read twice, as time stamps have a granularity.
    monkeypatch.setattr(file_records, "_RACY_NS", 0)
    pod, other = group.pods
    for name in (f"{JOB}/x", EVENTS):
        pod.path(name).write_text("content\n")
        os.utime(pod.path(name), (second, second))
    other.path(f"{JOB}/y").write_text("received")
    group.settle()

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", unexpected)
    assert pod.folder.scan() == []


@pytest.mark.parametrize("second", [1, 1 << 33])
def test_a_copy_with_the_size_and_time_of_its_predecessor_is_noticed(
    group: Group, tmp_path: Path, second: int
) -> None:
    pod, other = group.pods
    for content in ("AAAA", "BBBB"):
        source = tmp_path / content
        source.write_text(content)
        os.utime(source, (second, second))
        shutil.copy2(source, pod.path(f"{JOB}/labels.txt"))
        group.settle()
        assert other.path(f"{JOB}/labels.txt").read_text() == content
    group.check_equal()


def test_folders_over_a_real_endpoint(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in open_bucket("s3", request, monkeypatch):
        group = Group(tmp_path, uri)
        pod, other = group.pods
        pod.path(f"{JOB}/checkpoints/1/weights").write_bytes(os.urandom(300_000))
        pod.path(f"{JOB}/checkpoints/1/manifest.json").write_text("{}")
        pod.path(EVENTS).write_text("one\n")
        group.settle()
        with other.path(EVENTS).open("a") as file:
            file.write("two\n" * 40_000)
        group.settle()
        group.check_equal()
        group.restart_hub()
        group.settle()
        group.check_equal()
        assert len(group.hub_tree()) == 3
        pod.path(f"{JOB}/checkpoints/1/weights").unlink()
        group.settle()
        group.index.collect(0.0)
        group.index.collect(index_store.UNUSED_S)
        group.check_equal()
