"""Everything that may happen to a process of its own: each is caused here."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.serving.isolation.faults import REFERENCE
from tests.waiting import until
from timonel.serving.isolation import ProcessRuntime
from timonel.serving.isolation import runtime as runtime_module
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import ComputeSettings
from timonel.serving.signature import DEFAULT_SIGNATURE
from timonel.serving.status import Code, StatusError

pytestmark = pytest.mark.process

SETTINGS = RuntimeSettings(batching=AdaptiveBatching(assumed=("*",), slots=2))
"""Two batches at once, on any number of cores."""
MIB = 1 << 20


@pytest.fixture(scope="module")
def runtime():
    """One zygote for all: it takes a while to start."""
    runtime = ProcessRuntime(REFERENCE, close_timeout_s=5.0)
    runtime.prepare()
    yield runtime
    runtime.close()


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("fine")
    return folder


@pytest.fixture
def model(runtime, version):
    loaded = runtime.load(version, SETTINGS)
    yield loaded
    loaded.close()


def order(do, x=1.0):
    return {"do": np.array(do.encode(), object), "x": np.asarray(x, np.float32)}


def ask(model, do, x=1.0):
    return model.run(DEFAULT_SIGNATURE, order(do, x))["y"]


def submit(model, do, x=1.0, deadline_s=None):
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    return model.submit(DEFAULT_SIGNATURE, order(do, x), deadline=deadline)


def recovered(model, before):
    until(lambda: model.pid not in {None, before})
    assert ask(model, "double", 4) == 8
    until(lambda: not psutil.pid_exists(before))


@pytest.mark.parametrize(
    ("do", "cause"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("abort", "was killed by SIGABRT"),
        ("kill", "was killed by SIGKILL"),
        ("exit", "ended with exit code 3"),
        ("nonsense", "was killed because it sent invalid data"),
    ],
)
def test_a_death_costs_what_was_under_way_and_the_version_comes_back(runtime, model, do, cause):
    other = runtime.load(model._start.args[0], SETTINGS)
    before, beside = model.pid, submit(model, "sleep", 20)
    answers = []
    beside.add_done_callback(answers.append)
    dying = submit(model, do)
    for lost in (beside, dying):
        error = lost.exception(20)
        assert error.code is Code.UNAVAILABLE
        assert cause in error.message
    recovered(model, before)
    assert ask(other, "double") == 2, "another version does not notice"
    assert len(answers) == 1
    other.close()


def test_it_is_restarted_however_often_it_crashes(version, caplog, monkeypatch):
    monkeypatch.setattr(runtime_module, "_MAX_DELAY_S", 0.05)
    runtime = ProcessRuntime(REFERENCE)
    model, other = runtime.load(version, SETTINGS), runtime.load(version, SETTINGS)
    seen = {None}
    for _ in range(6):
        until(lambda: model.pid not in seen, 30)
        seen.add(model.pid)
        with pytest.raises(StatusError, match="exit code 3"):
            ask(model, "exit", np.zeros((2, 3), np.float32))
    until(lambda: model.restarts == 6, 30)
    assert model.outage is None
    assert ask(model, "double") == 2
    assert (other.outage, other.restarts) == (None, 0)
    assert "Requests in flight: serving_default(do: object[], x: float32[2, 3])" in caplog.text
    model.close()
    other.close()
    runtime.close()


def test_the_log_of_a_crash_has_requests_whose_clients_have_left(version, caplog):
    runtime = ProcessRuntime(REFERENCE)
    model = runtime.load(version, SETTINGS)
    assert submit(model, "hang").cancel()
    os.kill(model.pid, signal.SIGKILL)
    until(lambda: "Requests in flight" in caplog.text, 30)
    assert "Requests in flight: serving_default(do: object[], x: float32[])" in caplog.text
    model.close()
    runtime.close()


def test_a_damaged_file_is_reported_until_it_is_mended(version):
    runtime = ProcessRuntime(REFERENCE)
    model = runtime.load(version, SETTINGS)
    content = (version / "saved_model.pb").read_bytes()
    (version / "saved_model.pb").write_text("refuse")
    with pytest.raises(StatusError, match="exit code 3"):
        ask(model, "exit")
    until(lambda: model.outage is not None and model.outage.message == "a damaged model")
    assert model.outage.code is Code.DATA_LOSS
    with pytest.raises(StatusError, match="UNAVAILABLE: a damaged model"):
        ask(model, "double")
    (version / "saved_model.pb").write_bytes(content)
    until(lambda: model.outage is None, 30)
    assert ask(model, "double") == 2
    model.close()
    runtime.close()


@pytest.mark.parametrize("do", ["sleep", "hang"])
def test_a_deadline_is_kept_whatever_the_process_does(model, do):
    began = time.monotonic()
    late = submit(model, do, 1, deadline_s=0.2)
    assert late.exception(10).code is Code.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 5
    if do == "sleep":
        assert ask(model, "double") == 2, "another thread of it is free"
    else:
        os.kill(model.pid, signal.SIGKILL)


def test_a_request_that_is_too_late_is_not_begun(model):
    with pytest.raises(StatusError) as caught:
        model.submit(DEFAULT_SIGNATURE, order("double"), deadline=0.0).result(10)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


def test_a_process_that_hangs_is_replaced(version):
    runtime = ProcessRuntime(REFERENCE, ComputeSettings(hang_timeout_s=0.3))
    model = runtime.load(version, SETTINGS)
    before = model.pid
    assert ask(model, "sleep", 0.1) == np.float32(0.1)
    with pytest.raises(StatusError, match=r"it did not respond for 0\.3 s"):
        ask(model, "hang")
    recovered(model, before)
    model.close()
    runtime.close()


def test_a_hung_process_that_reports_its_queue_is_replaced(version):
    runtime = ProcessRuntime(REFERENCE, ComputeSettings(hang_timeout_s=0.3), threads=1)
    model = runtime.load(version, SETTINGS)
    before = model.pid
    hung, waiting = submit(model, "hang"), submit(model, "double")
    while not hung.done():
        assert 0 <= model.queued <= 2
    assert "did not respond for 0.3 s" in hung.exception().message
    assert waiting.exception(10).code is Code.UNAVAILABLE
    recovered(model, before)
    assert model.queued == 0
    model.close()
    runtime.close()


def test_a_process_that_is_stopped_has_all_its_requests_waiting(version):
    runtime = ProcessRuntime(REFERENCE)
    model = runtime.load(version, SETTINGS)
    os.kill(model.pid, signal.SIGSTOP)
    try:
        waiting = [submit(model, "double") for _ in range(2)]
        assert model.queued == 2
    finally:
        os.kill(model.pid, signal.SIGCONT)
    assert [each.exception(20) for each in waiting] == [None, None]
    model.close()
    runtime.close()


def test_a_process_that_hangs_is_replaced_though_nobody_waits_so_long(version):
    runtime = ProcessRuntime(REFERENCE, ComputeSettings(hang_timeout_s=0.5))
    model = runtime.load(version, SETTINGS)
    before = model.pid
    # Those that leave the queue, or were too late, are no sign of a process that hangs.
    busy = [submit(model, "sleep", 0.3) for _ in range(2)]
    assert submit(model, "double").cancel()
    assert submit(model, "double", deadline_s=0.05).exception(10).code is Code.DEADLINE_EXCEEDED
    assert [each.exception(10) for each in busy] == [None, None]
    time.sleep(0.7)
    assert model.pid == before
    with pytest.raises(StatusError):
        submit(model, "hang", deadline_s=0.1).result(10)

    def answers():
        answer = submit(model, "double", deadline_s=0.1)
        return answer.exception(10) is None

    until(answers)
    assert model.pid != before
    model.close()
    runtime.close()


def test_a_cancelled_request_leaves_the_queue(model):
    busy = [submit(model, "sleep", 0.5) for _ in range(2)]
    queued = submit(model, "exit")
    assert queued.cancel()
    assert not queued.cancel() or queued.cancelled()
    with pytest.raises(CancelledError):
        queued.result()
    for each in busy:
        assert each.result(20)["y"] == 0.5
    assert ask(model, "double") == 2


@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        ("refuse", Code.INVALID_ARGUMENT, "no ? thanks"),
        ("fail", Code.INTERNAL, "ZeroDivisionError: oh"),
        ("wrong_type", Code.INTERNAL, "TypeError: expected y to have a tensor's type, got <U4"),
    ],
)
def test_a_refusal_costs_one_request(model, do, code, message):
    with pytest.raises(StatusError) as caught:
        ask(model, do)
    assert (caught.value.code, caught.value.message) == (code, message)
    assert ask(model, "double") == 2


def test_inputs_that_are_no_tensors_are_refused_here(model):
    with pytest.raises(StatusError, match="expected x to have a tensor's type"):
        model.run(DEFAULT_SIGNATURE, {**order("double"), "x": np.array(["text"])})


def test_defaults_and_the_environment_come_along(model, monkeypatch):
    defaults = model.signatures[DEFAULT_SIGNATURE].defaults
    assert defaults["x"].tolist() == [0, 1, 2]
    assert defaults["do"].item() == b"double"
    expected = os.environ.get("OPENBLAS_NUM_THREADS", "unset").encode()
    assert ask(model, "variable").item() == expected


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("crash", Code.UNAVAILABLE, "The process of this model was killed by SIGABRT."),
        ("refuse", Code.DATA_LOSS, "a damaged model"),
        ("raise", Code.UNKNOWN, "ValueError: a defect"),
    ],
)
def test_a_load_that_fails_is_told(runtime, version, content, code, message):
    (version / "saved_model.pb").write_text(content)
    with pytest.raises(StatusError) as caught:
        runtime.load(version, SETTINGS)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_unloading_waits_for_requests_and_ends_the_process(runtime, version):
    model = runtime.load(version, SETTINGS)
    under_way = submit(model, "sleep", 0.3)
    pid = model.pid
    model.close()
    assert under_way.result(0)["y"] == np.float32(0.3)
    assert (version / "closed").exists()
    assert not psutil.pid_exists(pid)
    with pytest.raises(StatusError, match="has been unloaded"):
        ask(model, "double")


def test_unloading_does_not_wait_for_ever(version):
    runtime = ProcessRuntime(REFERENCE, close_timeout_s=0.2)
    model = runtime.load(version, SETTINGS)
    stuck, pid = submit(model, "hang"), model.pid
    time.sleep(0.1)
    model.close()
    assert stuck.exception(0).code is Code.UNAVAILABLE
    assert not psutil.pid_exists(pid)
    runtime.close()


def test_the_parent_is_replaced_when_it_dies(version):
    runtime = ProcessRuntime(REFERENCE)
    model = runtime.load(version, SETTINGS)
    before, parent = model.pid, runtime._zygote.pid
    os.kill(parent, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(before))
    recovered(model, before)
    assert runtime._zygote.pid != parent
    model.close()
    runtime.close()


def test_requests_are_unavailable_while_the_replaced_parent_dies_too(version):
    runtime = ProcessRuntime(REFERENCE)
    model = runtime.load(version, SETTINGS)
    before, first = model.pid, runtime._zygote
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: runtime._zygote not in {None, first})
    os.kill(runtime._zygote.pid, signal.SIGKILL)
    until(lambda: "was killed by SIGKILL" in getattr(model.outage, "message", ""))
    with pytest.raises(StatusError, match=r"UNAVAILABLE: .* was killed by SIGKILL"):
        ask(model, "double")
    recovered(model, before)
    model.close()
    runtime.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ThreadedRuntime", "cannot fork the runtime faulty: its imports started 1 thread"),
        ("UnpreparedRuntime", "ImportError: no such library"),
        ("NoRuntime", "AttributeError"),
    ],
)
def test_what_cannot_be_forked_is_told(version, name, message):
    runtime = ProcessRuntime(REFERENCE.replace("FaultyRuntime", name))
    for act in (runtime.prepare, lambda: runtime.load(version, SETTINGS)):
        with pytest.raises(StatusError, match=message) as caught:
            act()
        assert caught.value.code is Code.FAILED_PRECONDITION
    runtime.close()


FRONT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from timonel.serving.isolation import ProcessRuntime
    from timonel.serving.settings import RuntimeSettings
    import numpy as np

    runtime = ProcessRuntime(sys.argv[1])
    models = [runtime.load(Path(sys.argv[2]), RuntimeSettings()) for _ in range(2)]
    hang = {"do": np.array(b"hang", object), "x": np.array(1, np.float32)}
    models[0].submit("serving_default", hang)
    time.sleep(0.2)
    print(runtime._zygote.pid, *(model.pid for model in models), flush=True)
    time.sleep(60)
    """
)


def test_nothing_outlives_the_front(version):
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT, REFERENCE, str(version)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with front:
        pids = [int(pid) for pid in front.stdout.readline().split()]
        assert len(pids) == 3
        assert all(psutil.pid_exists(pid) for pid in pids)
        front.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_fifty_loads_leave_nothing_behind(runtime, version):
    def cycle():
        model = runtime.load(version, SETTINGS)
        assert ask(model, "double", np.ones(MIB // 4)).sum() == MIB // 2
        descriptors = int(ask(model, "descriptors"))
        model.close()
        return descriptors

    def held():
        parent = psutil.Process(runtime._zygote.pid)
        mine = psutil.Process()
        return mine.num_fds(), parent.num_fds(), len(parent.children())

    first = [cycle() for _ in range(3)]
    gc.collect()  # what tests before this one have left
    before, memory = held(), psutil.Process().memory_info().rss
    threads = set(threading.enumerate())
    assert {cycle() for _ in range(50)} == set(first)
    # The zygote closes what belongs to a process after it was told that the process has ended.
    until(lambda: held() == before, 30, seen=held)
    # Those of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= threads
    assert psutil.Process().memory_info().rss < 1.1 * memory
    assert "memfd:timonel" not in Path("/proc/self/maps").read_text()
