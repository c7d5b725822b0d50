from __future__ import annotations

from pathlib import Path

from timonel.engines.logs import LogTail, follow_logs, read_logs


def test_a_line_is_yielded_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    tail = LogTail("worker-0", path)
    assert list(tail.read()) == []
    path.write_bytes(b"one\r\ntw")
    assert [line.text for line in tail.read()] == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree \xff")
    assert [line.text for line in tail.read()] == ["two"]
    assert [line.text for line in tail.read(to_end=True)] == ["three \ufffd"]


def test_the_content_of_an_earlier_start_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    assert list(LogTail("worker-0", path, only_new=True).read()) == []
    path.write_text("old\n")
    tail = LogTail("worker-0", path, only_new=True)
    with path.open("a") as file:
        file.write("new\n")
    assert [line.text for line in tail.read()] == ["new"]


def test_following_ends_after_what_was_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"

    def is_over() -> bool:
        path.write_text("last words")
        return True

    lines = list(follow_logs([LogTail("worker-0", path)], is_over))
    assert [line.text for line in lines] == ["last words"]


def test_reading_goes_task_by_task(tmp_path: Path) -> None:
    tails = []
    for name in ("a-0", "b-0"):
        (tmp_path / name).write_text("x\ny\n")
        tails.append(LogTail(name, tmp_path / name))
    assert [(line.task_id, line.text) for line in read_logs(tails)] == [
        ("a-0", "x"),
        ("a-0", "y"),
        ("b-0", "x"),
        ("b-0", "y"),
    ]
