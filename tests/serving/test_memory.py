from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from timonel.serving import memory

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the arenas are those of glibc"
)

THREADS = min(100, 8 * (os.cpu_count() or 1) + 8)
COUNT = f"""
import ctypes, tempfile, threading
from timonel.serving.memory import limit_heap

limit_heap()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.fopen.restype = ctypes.c_void_p
all_there = threading.Barrier({THREADS} + 1)

def take():
    library.malloc(ctypes.c_size_t(5000))
    all_there.wait()
    all_there.wait()

for _ in range({THREADS}):
    threading.Thread(target=take, daemon=True).start()
all_there.wait()
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(file.read().count(b"<heap "))
all_there.wait()
"""


def arenas(**env):
    kept = {k: v for k, v in os.environ.items() if k not in {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}}
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={**kept, **env},
        capture_output=True,
        check=True,
        text=True,
    )
    return int(done.stdout)


@pytest.mark.process
def test_threads_share_two_arenas():
    assert arenas() == 2


@pytest.mark.process
def test_the_environments_limit_of_arenas_holds():
    assert arenas(MALLOC_ARENA_MAX="3") == 3
    assert arenas(GLIBC_TUNABLES="glibc.malloc.arena_max=4") == 4


def trims_of(monkeypatch, *resident):
    """Return how many looks had come before each trim; each trim is followed by a look."""
    looks, trims = iter(resident), []
    seen = []

    def look():
        seen.append(next(looks))
        return seen[-1]

    monkeypatch.setattr(memory, "_GROWTH_BYTES", 50)
    monkeypatch.setattr(memory.threading.Event, "wait", lambda *_: False)
    monkeypatch.setattr(memory, "_resident_bytes", look)
    monkeypatch.setattr(memory, "give_back", lambda: trims.append(len(seen)))
    with pytest.raises(StopIteration):
        memory._trim_when_grown()
    return trims


def test_memory_is_given_back_when_the_process_has_grown(monkeypatch):
    # At the start; three looks; after the trim; two looks; after the second trim; then the end.
    assert trims_of(monkeypatch, 100, 101, 140, 180, 120, 150, 171, 130) == [4, 7]


def test_memory_that_is_freed_long_after_is_given_back_as_well(monkeypatch):
    # Held at the first trim, so that nothing came of it; then looks at 2, 4 and 8 s.
    held = [180] * 15
    assert trims_of(monkeypatch, 100, 180, *held, 120) == [2, 5, 10]
    # Nothing to give back: no more trims.
    assert trims_of(monkeypatch, 100, *[149] * 30) == []
