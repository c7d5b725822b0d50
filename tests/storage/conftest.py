"""What storage tests share: programs to kill and a file system that is full."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Kill = Callable[..., None]


@pytest.fixture
def killed() -> Kill:
    """Run a program up to where it prints ``now``, and kill it there with SIGKILL."""

    def run(code: str, *arguments: object) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "now\n"
            process.kill()

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if not done or done.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
