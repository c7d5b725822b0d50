from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.training.worker.program import fill_placeholders

NAMES = ("chief_hosts", "worker_hosts", "ps_hosts", "job_name", "task_index")

TASKS = {"chief": ("c:1",), "worker": ("w:1", "w:2"), "ps": ("p:1", "p:2")}
FLAGS = ["--ps={ps_hosts}", "--w", "{worker_hosts}", "--me={job_name}:{task_index}"]


@pytest.mark.parametrize(
    ("role", "index", "me"),
    [("chief", 0, "worker:0"), ("worker", 1, "worker:2"), ("ps", 1, "ps:1"),
     ("evaluator", 0, "evaluator:0")],
)  # fmt: skip
def test_a_script_that_knows_no_chief(role: str, index: int, me: str) -> None:
    assert fill_placeholders(FLAGS, TASKS, role, index) == [
        "--ps=p:1,p:2",
        "--w",
        "c:1,w:1,w:2",
        f"--me={me}",
    ]


@pytest.mark.parametrize(("role", "index"), [("chief", 0), ("worker", 1), ("ps", 0)])
def test_a_script_that_asks_for_the_chief(role: str, index: int) -> None:
    filled = fill_placeholders(["{chief_hosts}", *FLAGS], TASKS, role, index)
    assert filled == ["c:1", "--ps=p:1,p:2", "--w", "w:1,w:2", f"--me={role}:{index}"]


def test_without_parameter_servers_there_are_no_hosts_of_them() -> None:
    assert fill_placeholders(["--ps_hosts={ps_hosts}"], {"chief": ("c:1",)}, "chief", 0) == [
        "--ps_hosts="
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("{{job_name}}", "{job_name}"),
        ("{{chief_hosts}} {worker_hosts}", "{chief_hosts} c:1,w:1,w:2"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("weights-{epoch:03d}.h5", "weights-{epoch:03d}.h5"),
        ("{worker_host}", "{worker_host}"),
        ("{}", "{}"),
    ],
)
def test_other_braces_mean_nothing(word: str, meant: str) -> None:
    assert fill_placeholders([word], TASKS, "chief", 0) == [meant]


@given(st.lists(st.text().filter(lambda word: not any(name in word for name in NAMES))))
def test_other_words_stay_as_they_are(words: list[str]) -> None:
    assert fill_placeholders(words, TASKS, "worker", 0) == words
