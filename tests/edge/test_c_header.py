"""Models as C headers: a compiler reads the same bytes; the arena is the smallest that fits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.edge.c_header import smallest, write_header

PROGRAM = """
#include <stdio.h>
#include "model.h"
int main(void) {
  fwrite(model_my_model_1, 1, model_my_model_1_size, stdout);
  return model_my_model_1_arena_bytes == 4096 ? 0 : 1;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a bare machine has no C compiler")
def test_a_compiler_reads_the_same_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3 + b"end"
    write_header(tmp_path, content, "my model/1", 4096)
    (tmp_path / "main.c").write_text(PROGRAM)
    subprocess.run(["cc", "-std=c11", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, check=True)
    assert done.stdout == content


@given(st.integers(1, 1 << 28))
def test_the_smallest_arena(least: int) -> None:
    found = smallest(lambda size: size >= least)
    assert found is not None
    assert found >= least
    assert found - least <= 64 or found <= 64


def test_models_that_no_arena_fits() -> None:
    assert smallest(lambda _: False) is None
