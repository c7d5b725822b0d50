"""The checks of the doctor, each judged both ways, and the command around them."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.checks import Check, Verdict
from timonel.cli.commands.doctor import examine
from timonel.cli.doctor import check as render
from timonel.cli.doctor import machine, tensorflow

FACTS = {
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "keras_package": "keras",
    "legacy_asked": False,
    "import_s": 5.0,
    "threads": 1,
    "devices": ["/physical_device:CPU:0"],
    "onednn": True,
}


def test_less_than_two_cores_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert machine.cores(tmp_path).verdict is Verdict.WARN


@pytest.mark.parametrize(("limit", "verdict"), [("100000000", "fail"), ("2000000000", "warn")])
def test_little_memory(limit: str, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(limit)
    check = machine.memory(tmp_path)
    assert check.verdict == verdict
    assert "limit" in check.found


def test_a_port_in_use_is_a_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (check,) = machine.ports((("REST", port),))
    assert check.verdict is Verdict.WARN
    assert "--rest-port" in (check.hint or "")
    (check,) = machine.ports((("REST", port),))
    assert check.verdict is Verdict.OK


def test_a_workspace_of_a_newer_format_fails(here: Path) -> None:
    (here / ".timonel").mkdir()
    (here / ".timonel" / "FORMAT").write_text('{"kind": "workspace", "format": 99}')
    (check,) = machine.disk(None)
    assert check.verdict is Verdict.FAIL
    assert "upgrade timonel" in (check.hint or "")


def test_a_missing_extra_names_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "EXTRAS", (("nope", "no_such_module", "nothing"),))
    (check,) = machine.extras()
    assert check.verdict is Verdict.NOTE
    assert check.hint == "pip install 'timonel[nope]'"


def test_a_reader_that_was_not_compiled_is_noted(monkeypatch, tmp_path: Path) -> None:
    built = importlib.util.find_spec("timonel.serving.codec._numbers") is not None
    assert machine.json_reader().verdict is (Verdict.OK if built else Verdict.NOTE)
    (tmp_path / "serving" / "codec").mkdir(parents=True)
    monkeypatch.setattr(machine, "files", lambda _: tmp_path)
    check = machine.json_reader()
    assert check.verdict is Verdict.NOTE
    assert "install a C compiler" in check.hint


@pytest.mark.parametrize(
    ("judge", "change", "verdict"),
    [
        (tensorflow.versions, {}, "ok"),
        (tensorflow.versions, {"tensorflow": "2.20.0"}, "warn"),
        (tensorflow.keras, {}, "ok"),
        (tensorflow.keras, {"keras": "2.21.0", "keras_package": "tf-keras"}, "ok"),
        (tensorflow.keras, {"keras": "4.0.0"}, "warn"),
        (tensorflow.zygote, {}, "ok"),
        (tensorflow.zygote, {"threads": 4}, "note"),
        (tensorflow.devices, {}, "ok"),
        (tensorflow.what_jobs_get, {}, "ok"),
    ],
)
def test_tensorflows_facts_are_judged(judge, change: dict[str, object], verdict: str) -> None:
    assert judge({**FACTS, **change}).verdict == verdict


def test_what_jobs_get_of_the_devices_and_cores() -> None:
    cpus = tensorflow.what_jobs_get(FACTS, cores=4)
    assert cpus.found == (
        "1 worker: a CPU, 4 threads; 2 workers: a CPU, 2 threads each; "
        "4 workers: a CPU, 1 thread each"
    )
    gpus = [f"/physical_device:GPU:{number}" for number in range(2)]
    found = tensorflow.what_jobs_get({**FACTS, "devices": gpus}, cores=4)
    assert "2 workers: a GPU, 2 threads each; 4 workers: too few GPUs" in found.found
    assert "--devices-per-worker 2" in (found.hint or "")
    assert tensorflow.what_jobs_get(FACTS, cores=0.5).found.startswith("1 worker: a CPU, 1 thread;")


@pytest.mark.parametrize(
    ("onednn", "flags", "verdict"),
    [(True, {"avx2", "fma"}, "ok"), (True, {"sse4_2"}, "note"), (False, {"avx2"}, "note")],
)
def test_the_processor(onednn: bool, flags: set[str], verdict: str) -> None:
    assert tensorflow.processor({"onednn": onednn}, frozenset(flags)).verdict == verdict


def test_threads_that_the_environment_limits() -> None:
    assert tensorflow.threads(None, None).verdict is Verdict.OK
    assert tensorflow.threads("0", None).verdict is Verdict.NOTE
    assert tensorflow.threads(None, "100000").verdict is Verdict.OK


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("raise ImportError('no such thing')", "cannot be loaded: ImportError: no such thing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended with SIGILL"),
        ("import time; time.sleep(60)", "did not load within 0.2s"),
    ],
)
def test_a_tensorflow_that_does_not_load(code: str, part: str) -> None:
    with pytest.raises(tensorflow.ProbeError, match=part):
        tensorflow.load_facts([sys.executable, "-c", code], 0.2 if "sleep" in code else 30)


def verdicts(*words: Verdict) -> list[Check]:
    return [Check("area", f"check {i}", word, "found", "do this") for i, word in enumerate(words)]


def fake_examine(monkeypatch: pytest.MonkeyPatch, checks: list[Check]) -> None:
    monkeypatch.setattr("timonel.cli.commands.doctor.examine", lambda *_, **__: iter(checks))


def test_the_command_ends_with_1_if_a_check_fails(timonel: Timonel, monkeypatch) -> None:
    fake_examine(monkeypatch, verdicts(Verdict.OK, Verdict.FAIL))
    outcome = timonel("doctor")
    assert outcome.exit_code == 1
    assert "FAIL check 1" in outcome.out
    assert "do this" in outcome.out


def test_json_has_stable_keys(timonel: Timonel, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_examine(monkeypatch, verdicts(Verdict.OK, Verdict.NOTE, Verdict.WARN))
    outcome = timonel("doctor", "--json")
    assert outcome.exit_code == 0
    value = json.loads(outcome.out)
    assert value["ready"] is True
    assert set(value["checks"][0]) == {"area", "name", "verdict", "found", "hint"}


def test_hints_are_shown_where_there_is_something_to_do() -> None:
    ok, warn = verdicts(Verdict.OK, Verdict.WARN)
    assert "do this" not in render.check_lines(ok).plain
    assert "do this" in render.check_lines(warn).plain


@pytest.mark.slow
def test_this_machine_is_examined_without_tensorflow(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(tensorflow, "load_facts", lambda *_: FACTS)
    checks = list(examine())
    assert {check.area for check in checks} == {"packages", "machine", "speed", "tensorflow"}
    assert all(check.found for check in checks)
    assert not (here / ".timonel").exists()
