from __future__ import annotations

import ctypes
import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from timonel.errors import AlreadyExistsError, InputError
from timonel.storage import append_line, atomic, publish_dir, write_bytes, write_json
from timonel.storage.atomic import (
    ASIDE_PREFIX,
    aside_name,
    create_bytes,
    parse_lines,
    sweep,
    temporary_prefix,
    unwritable,
)

Kill = Callable[..., None]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lines_are_parsed_and_unusable_ones_skipped(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert parse_lines(path, json.loads) == []
    for text in ('"a\u2028b"', "2"):
        append_line(path, text)
    with path.open("ab") as file:
        file.write(b'\xff\n\n{"torn"')
    append_line(path, "3")
    assert parse_lines(path, json.loads) == ["a\u2028b", 2, 3]
    with pytest.raises(InputError, match="cannot read"):
        parse_lines(tmp_path, json.loads)


def test_a_file_is_replaced(tmp_path: Path) -> None:
    write_bytes(tmp_path / "new" / "file", b"1")
    write_bytes(tmp_path / "new" / "file", b"2")
    assert (tmp_path / "new" / "file").read_bytes() == b"2"
    assert names(tmp_path / "new") == ["file"]


def test_a_file_with_a_long_name_is_replaced(tmp_path: Path) -> None:
    for name in ("é" * 127, "a" + "€" * 84, "😀" * 60, "x" * 255):
        write_bytes(tmp_path / name, b"1")
        assert (tmp_path / name).read_bytes() == b"1"


def test_json_can_be_read_by_people_and_programs(tmp_path: Path) -> None:
    write_json(tmp_path / "j", {"a": "ñ", "b": [1]})
    text = (tmp_path / "j").read_text()
    assert json.loads(text) == {"a": "ñ", "b": [1]}
    assert "ñ" in text
    assert text.endswith("}\n")


def test_a_file_is_made_once(tmp_path: Path) -> None:
    create_bytes(tmp_path / "file", b"1")
    with pytest.raises(AlreadyExistsError):
        create_bytes(tmp_path / "file", b"2")
    assert (tmp_path / "file").read_bytes() == b"1"
    assert names(tmp_path) == ["file"]


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("n" * 255), b"1")
    with publish_dir(tmp_path / ("d" * 255)):
        pass
    assert [len(name) for name in names(tmp_path)] == [255, 255]


def test_a_file_in_the_way_of_a_folder_is_said_so(tmp_path: Path) -> None:
    # Tests may run as root, whom no mode stops.
    (tmp_path / "file").write_text("")
    for write in (write_bytes, create_bytes):
        with pytest.raises(InputError, match=r"cannot write .*: choose a writable"):
            write(tmp_path / "file" / "x", b"1")
    with pytest.raises(InputError, match="cannot write"):
        append_line(tmp_path / "file" / "x", "1")
    with pytest.raises(InputError, match="cannot write"), publish_dir(tmp_path / "file" / "x"):
        pytest.fail("the block must not run")


def test_a_folder_appears_when_its_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "parent" / "target"
    with publish_dir(target) as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text("1")
        (aside / "link").symlink_to("/nowhere")
        assert not target.exists()
    assert names(target) == ["link", "sub"]
    assert names(target.parent) == ["target"]


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with publish_dir(tmp_path / "target") as aside:
            (aside / "file").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_a_folder_aside_is_gone_when_its_block_ends(tmp_path: Path) -> None:
    with atomic.aside_dir(tmp_path / "target") as aside:
        assert aside.parent == tmp_path
        (aside / "file").touch()
    assert names(tmp_path) == []
    with pytest.raises(InputError), atomic.aside_dir(Path("/proc/target")):
        pass


def test_a_folder_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(AlreadyExistsError), publish_dir(tmp_path / "target"):
        pytest.fail("the block must not run")

    def overtaken() -> None:
        with publish_dir(tmp_path / "other") as aside:
            (aside / "mine").write_text("1")
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "theirs").write_text("2")

    with pytest.raises(AlreadyExistsError):
        overtaken()
    assert names(tmp_path / "other") == ["theirs"]
    assert names(tmp_path) == ["other", "target"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with publish_dir(tmp_path / "target", replace=True) as aside:
            (aside / content).write_text(content)
    assert names(tmp_path / "target") == ["new"]
    assert names(tmp_path) == ["target"]


def test_a_failed_replacement_keeps_the_old(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").write_text("1")
    with pytest.raises(ValueError, match="no"), publish_dir(tmp_path / "target", replace=True):
        raise ValueError("no")
    assert names(tmp_path / "target") == ["old"]
    assert names(tmp_path) == ["target"]


def test_where_folders_cannot_be_exchanged_renames_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoExchange:
        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: NoExchange())
    for content in ("old", "new"):
        with publish_dir(tmp_path / "target", replace=True) as aside:
            (aside / content).write_text(content)
    assert names(tmp_path / "target") == ["new"]
    assert names(tmp_path) == ["target"]


def test_an_exchange_that_fails_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(errno.EACCES)
            return -1

    (tmp_path / "target").mkdir()
    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: Refused())
    with (
        pytest.raises(InputError, match="Permission denied"),
        publish_dir(tmp_path / "target", replace=True),
    ):
        pass
    assert names(tmp_path) == ["target"]


def _replace_again_and_again(target: Path) -> None:
    number = 0
    while not (target.parent / "stop").exists():
        number += 1
        with publish_dir(target, replace=True) as aside:
            (aside / "a").write_text(str(number))
            (aside / "b").write_text(str(number))


def _read_both(target: Path) -> list[bytes]:
    # Opened once: what is then read through it belongs together.
    folder = os.open(target, os.O_RDONLY)
    try:
        both = []
        for name in ("a", "b"):
            descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
            both.append(os.read(descriptor, 20))
            os.close(descriptor)
        return both
    finally:
        os.close(folder)


def test_a_reader_always_finds_a_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with publish_dir(target) as aside:
        (aside / "a").write_text("0")
        (aside / "b").write_text("0")
    writer = multiprocessing.get_context("fork").Process(
        target=_replace_again_and_again, args=(target,)
    )
    writer.start()
    seen: set[bytes] = set()
    while len(seen) < 30:
        assert target.is_dir()
        try:
            first, second = _read_both(target)
        except FileNotFoundError:
            continue  # the one that was opened is being removed: the next look finds the new one
        assert first == second
        seen.add(first)
    (tmp_path / "stop").touch()
    writer.join()
    assert names(tmp_path) == ["stop", "target"]


KILLED_PUBLISH = """
import sys, time
from pathlib import Path
from timonel.storage import publish_dir
with publish_dir(Path(sys.argv[1]), replace=True) as aside:
    (aside / "half").write_text("1")
    print("now", flush=True)
    time.sleep(60)
"""

KILLED_WRITE = """
import sys, time
from pathlib import Path
from timonel.storage import atomic
def killed_here(descriptor):
    print("now", flush=True)
    time.sleep(60)
atomic.os.fsync = killed_here
atomic.write_bytes(Path(sys.argv[1]), b"new content")
"""


@pytest.mark.process
@pytest.mark.parametrize("before", [False, True])
def test_a_writer_killed_at_work_leaves_the_folder_as_it_was(
    tmp_path: Path, killed: Kill, before: bool
) -> None:
    target = tmp_path / "target"
    if before:
        target.mkdir()
        (target / "old").write_text("1")
    killed(KILLED_PUBLISH, target)
    assert target.exists() == before
    left = [name for name in names(tmp_path) if name.startswith(ASIDE_PREFIX)]
    assert len(left) == 1
    assert [path.name for path in sweep(tmp_path)] == left
    assert names(tmp_path) == (["target"] if before else [])
    with publish_dir(target, replace=True) as aside:
        (aside / "new").write_text("1")
    assert names(target) == ["new"]


@pytest.mark.process
def test_a_writer_killed_at_work_leaves_the_file_as_it_was(tmp_path: Path, killed: Kill) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    killed(KILLED_WRITE, target)
    assert target.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    sweep(tmp_path)
    assert names(tmp_path) == ["file"]


def test_sweeping_spares_living_writers_other_hosts_and_other_files(tmp_path: Path) -> None:
    (tmp_path / aside_name("x")).mkdir()
    (tmp_path / f"{ASIDE_PREFIX}999999999-000000-12345678-x").write_text("")
    (tmp_path / f"{ASIDE_PREFIX}x").write_text("")
    assert sweep(tmp_path) == []
    assert len(names(tmp_path)) == 3


def _append(path: Path, worker: int) -> None:
    for number in range(100):
        # Longer than a page, so that a write that is not one write would show.
        append_line(path, json.dumps({"worker": worker, "n": number, "pad": "x" * 5000}))


def test_eight_processes_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(path, n)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    assert len(lines) == 800
    for number in range(8):
        of_one = [line["n"] for line in lines if line["worker"] == number]
        assert of_one == list(range(100))


def test_a_torn_line_is_closed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntor")
    append_line(path, "two", durable=True)
    assert path.read_bytes() == b"one\ntor\ntwo\n"


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    write_bytes(small_disk / "file", b"old")
    with pytest.raises(InputError, match="No space left"):
        write_bytes(small_disk / "file", b"x" * 100_000)
    with pytest.raises(InputError, match="No space left"):
        create_bytes(small_disk / "other", b"x" * 100_000)
    with pytest.raises(OSError, match="No space left"), publish_dir(small_disk / "dir") as aside:
        (aside / "big").write_bytes(b"x" * 100_000)
    assert (small_disk / "file").read_bytes() == b"old"
    assert names(small_disk) == ["file"]


def test_a_line_that_does_not_fit_is_said_so(small_disk: Path) -> None:
    append_line(small_disk / "lines", "one")
    with pytest.raises(InputError, match="No space left"):
        append_line(small_disk / "lines", "x" * 100_000)
    assert (small_disk / "lines").read_bytes().startswith(b"one\nx")


def test_a_limit_on_file_sizes_leaves_no_torn_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InputError, match="File too large"):
            write_bytes(tmp_path / "file", b"x" * 2000)
        with pytest.raises(InputError, match="cannot write"):
            append_line(tmp_path / "lines", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_interrupted_write_leaves_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    write_bytes(tmp_path / "file", b"old")
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_could_not_be_written_aside_is_called_by_its_own_name(tmp_path: Path) -> None:
    error = unwritable(tmp_path / aside_name("my-data") / "shard", OSError(28, "No space left"))
    assert error.message == f"cannot write {tmp_path}/my-data: No space left"
    error = unwritable(tmp_path / aside_name("my-data"), OSError(28, "No space left"))
    assert error.message == f"cannot write {tmp_path}/my-data: No space left"


def test_an_error_without_a_reason_is_shown_as_it_is(tmp_path: Path) -> None:
    assert ": odd" in unwritable(tmp_path, OSError("odd")).message


@pytest.mark.process
def test_temporary_folders_of_dead_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, signal, tempfile; from timonel.storage.atomic import temporary_prefix; "
        "tempfile.mkdtemp(prefix=temporary_prefix()); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert len(list(tmp_path.iterdir())) == 1
    own = tempfile.mkdtemp(prefix=temporary_prefix())
    assert list(tmp_path.iterdir()) == [Path(own)]
    temporary_prefix()
    assert Path(own).is_dir()
