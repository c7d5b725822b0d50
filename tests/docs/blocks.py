"""Taking the commands of a Markdown page out, and running them in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CD = re.compile(r"^cd (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block that a reader is to run."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the ``sh`` and ``python`` blocks of a page, in order; others are only shown."""
    return [Block(*match) for match in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(block: Block, folder: Path) -> str:
    """Run a block in ``folder`` and return what it printed; fails as the shell does with -e."""
    if block.language == "python":
        argv = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", block.text]
    else:
        command = f'timonel() {{ {shlex.quote(sys.executable)} -m timonel "$@"; }}\n{block.text}'
        argv = ["bash", "-euo", "pipefail", "-c", command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "COLUMNS": "80"}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def after(block: Block, folder: Path) -> Path:
    """Return the folder that a reader is in after a block."""
    for target in _CD.findall(block.text) if block.language == "sh" else []:
        folder = folder / target
    return folder


def run_page(page: Path, folder: Path) -> tuple[Path, list[str]]:
    """Run a page's blocks; return where that leads and what each printed."""
    printed = []
    for block in blocks(page):
        printed.append(run(block, folder))
        folder = after(block, folder)
    return folder, printed
