"""When idle warm parents give their memory back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.engines.local.processes import own_identity
from timonel.engines.local.warm.idle import MOST_IDLE, IdleMark, is_surplus
from timonel.engines.local.warm.memory import is_scarce


def machine(tmp_path: Path, available_kb: int, groups: str = "") -> tuple[Path, Path]:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    meminfo = f"MemTotal:  1000000 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n"
    (proc / "meminfo").write_text(meminfo)
    (proc / "self/cgroup").write_text(groups)
    return proc, cgroups


@pytest.mark.parametrize(("available_kb", "scarce"), [(99_000, True), (101_000, False)])
def test_a_machine_may_be_short_of_memory(tmp_path: Path, available_kb: int, scarce: bool) -> None:
    assert is_scarce(*machine(tmp_path, available_kb)) is scarce


@pytest.mark.parametrize(
    ("groups", "folder", "files"),
    [
        ("0::/job\n", "job", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/job\n",
            "memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_group_may_be_short_of_memory(
    tmp_path: Path, groups: str, folder: str, files: tuple[str, str, str]
) -> None:
    proc, cgroups = machine(tmp_path, 900_000, groups)
    limit, usage, cache = files
    group = cgroups / folder
    group.mkdir(parents=True)
    (group / limit).write_text("max\n")
    (group / usage).write_text("950\n")
    assert not is_scarce(proc, cgroups)
    (group / limit).write_text("1000\n")
    assert is_scarce(proc, cgroups)
    # What the kernel gives back by itself is there to be used.
    (group / "memory.stat").write_text(f"anon 1\n{cache} 500\n")
    assert not is_scarce(proc, cgroups)


def test_without_any_figures_nothing_is_scarce(tmp_path: Path) -> None:
    assert not is_scarce(tmp_path, tmp_path)


@given(st.lists(st.floats(0, 1e6), max_size=8, unique=True))
def test_the_last_few_stay(times: list[float]) -> None:
    staying = [t for t in times if not is_surplus(t, [other for other in times if other != t])]
    assert sorted(staying) == sorted(times)[-MOST_IDLE:]


def test_marks_of_parents_that_are_gone_do_not_count(tmp_path: Path) -> None:
    first = IdleMark(tmp_path / "a.sock")
    first.set()
    dead = {**own_identity().as_json(), "start_ticks": 1}
    for name in ("b", "c"):
        mark = {"since": 1e12, "parent": dead}
        (tmp_path / f"{name}.idle").write_text(json.dumps(mark))
    (tmp_path / "d.idle").write_text("no mark")
    assert not first.is_surplus
    for name in ("e", "f"):
        IdleMark(tmp_path / f"{name}.sock").set()
    assert first.is_surplus
    first.clear()
    assert not first.is_surplus
    assert not (tmp_path / "a.idle").exists()
