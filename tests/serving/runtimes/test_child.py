"""Versions in child processes: what crosses, and what happens when the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psutil
import pytest

from tests.contracts.runtimes import RuntimeContract
from tests.serving.freeing import freed_by_reference_counts
from tests.serving.runtimes.faults import REFERENCE
from tests.waiting import until
from timonel.processes.backoff import CrashBackoff
from timonel.serving.runtimes import child as child_module
from timonel.serving.runtimes.child import ChildRuntime
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import DEFAULT_SIGNATURE
from timonel.serving.status import Code, StatusError

pytestmark = pytest.mark.process

DOUBLER = REFERENCE.replace("Faulty", "Doubler")


def write(folder, text="fine"):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text(text)
    return folder


@pytest.fixture
def version(tmp_path):
    return write(tmp_path / "m" / "1")


@pytest.fixture
def load(version):
    """Load the version, with options of the runtime."""
    loaded = []

    def do(**options):
        loaded.append(ChildRuntime(REFERENCE, **options).load(version, RuntimeSettings()))
        return loaded[-1]

    yield do
    for model in loaded:
        model.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A process that no test ends."""
    folder = write(tmp_path_factory.mktemp("shared") / "m" / "1")
    model = ChildRuntime(REFERENCE).load(folder, RuntimeSettings())
    yield model
    model.close()


def ask(model, do, x=1.0):
    x = x if isinstance(x, np.ndarray) else np.asarray(x, np.float32)
    return model.run(DEFAULT_SIGNATURE, {"do": np.array(do.encode(), object), "x": x})["y"]


def failure(model, do, x=1.0):
    with pytest.raises(StatusError) as caught:
        ask(model, do, x)
    return caught.value


def recovered(model, before):
    until(lambda: model.pid not in {None, before})
    assert ask(model, "double", 4) == 8
    assert not psutil.pid_exists(before)


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return ChildRuntime(DOUBLER, threads=4)

    @pytest.fixture
    def version(self, version):
        return version


ARRAYS = {
    "large": np.arange(3 << 20, dtype=np.float32),
    "strings": np.array([[b"", b"a\xff" * 100_000], [b"\0", b"b"]], object),
    "string": np.array(b"one", object),
    "zero rows": np.zeros((0, 3), np.int64),
    "no columns": np.zeros((3, 0), np.float64),
    "scalar": np.array(7, np.uint8),
    "bool": np.array(True),
    "strided": np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-3],
    "transposed": np.arange(6, dtype=np.complex64).reshape(2, 3).T,
    "broadcast": np.broadcast_to(np.float16(2), (3, 4)),
}


def test_a_failed_request_is_freed_without_garbage_collection(shared):
    message = ""
    with freed_by_reference_counts(np.ones(3, np.float32)) as inputs:
        try:
            ask(shared, "no_such", inputs["x"])
        except StatusError as error:
            message = error.message
    assert "no_such" in message


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_cross_unchanged(shared, kind):
    given = ARRAYS[kind]
    given.flags.writeable = False
    found = ask(shared, "echo", given)
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    np.testing.assert_array_equal(found, given)


def test_signatures_cross_with_their_defaults(shared):
    defaults = shared.signatures[DEFAULT_SIGNATURE].defaults
    assert defaults["x"].tolist() == [0, 1, 2]
    assert defaults["do"].item() == b"double"
    assert (shared.platform, shared.batchable, shared.slots) == ("custom", False, 2)


def test_as_many_calls_run_at_once_as_there_are_slots(shared):
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda _: bool(ask(shared, "meet")), range(6)))


@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        ("refuse", Code.INVALID_ARGUMENT, "no thanks"),
        ("fail", Code.INTERNAL, "ZeroDivisionError: oh"),
        ("wrong_type", Code.INTERNAL, "TypeError: expected y to have a tensor's type, got <U4"),
    ],
)
def test_an_error_costs_one_request(shared, do, code, message):
    pid, error = shared.pid, failure(shared, do)
    assert (error.code, error.message) == (code, message)
    assert ask(shared, "double") == 2
    assert shared.pid == pid


@pytest.mark.parametrize(
    ("do", "cause"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("abort", "was killed by SIGABRT"),
        ("kill", "was killed by SIGKILL"),
        ("exit", "ended with exit code 3"),
    ],
)
def test_a_death_costs_the_calls_in_progress_and_it_comes_back(load, shared, do, cause):
    model, beside = load(), []
    before = model.pid
    thread = threading.Thread(target=lambda: beside.append(failure(model, "sleep", 60)))
    thread.start()
    until(lambda: model._child._idle.qsize() == 1)
    own = failure(model, do)
    thread.join(180)
    for error in (own, *beside):
        assert (error.code, error.message) == (
            Code.UNAVAILABLE,
            f"The process of this model {cause}.",
        )
    assert len(beside) == 1
    recovered(model, before)
    assert (model.restarts, model.outage) == (1, None)
    assert (ask(shared, "double"), shared.restarts) == (2, 0)


def test_calls_that_wait_for_a_slot_end_with_the_process(load):
    model = load()
    child = model._child
    used = [child._idle.get() for _ in range(child._idle.qsize())]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(failure, model, "double") for _ in range(4)]
        os.kill(model.pid, signal.SIGKILL)
        errors = [each.result(60) for each in waiting]
    for each in used:
        each.close()
    assert {error.code for error in errors} == {Code.UNAVAILABLE}


def test_it_is_restarted_however_often_it_crashes(load, caplog, monkeypatch):
    monkeypatch.setattr(child_module, "CrashBackoff", partial(CrashBackoff, max_s=0.01))
    model, seen = load(), {None}
    for _ in range(6):
        until(lambda: model.pid not in seen)
        seen.add(model.pid)
        failure(model, "exit", np.zeros((2, 3), np.float32))
    until(lambda: model.restarts == 6)
    assert ask(model, "double") == 2
    # What a person looks for: the requests that may have caused it.
    during = "m/1: the process ended during serving_default(do: object[], x: float32[2, 3])"
    assert caplog.text.count(during) == 6


def test_a_damaged_file_is_reported_until_it_is_mended(load, version, monkeypatch):
    monkeypatch.setattr(child_module, "CrashBackoff", partial(CrashBackoff, max_s=0.1))
    model = load()
    (version / "saved_model.pb").write_text("refuse")
    failure(model, "exit")
    until(lambda: model.outage is not None and model.outage.code is Code.DATA_LOSS)
    error = failure(model, "double")
    assert (error.code, error.message) == (Code.UNAVAILABLE, "a damaged model")
    (version / "saved_model.pb").write_text("fine")
    until(lambda: model.outage is None)
    assert ask(model, "double") == 2


def test_a_call_that_takes_too_long_ends_the_process(load):
    model = load(timeout_s=0.3)
    before = model.pid
    assert ask(model, "sleep", 0.01) == np.float32(0.01)
    error = failure(model, "hang")
    assert error.code is Code.DEADLINE_EXCEEDED
    assert error.message == (
        "The process of this model was killed because a request took longer than 0.3 s."
    )
    recovered(model, before)


def test_a_call_that_cannot_be_sent_ends_the_process(load):
    model = load(timeout_s=0.3)
    before = model.pid
    os.kill(before, signal.SIGSTOP)
    # More than fits between two processes.
    error = failure(model, "double", np.zeros(400_000, np.float32))
    assert error.code is Code.DEADLINE_EXCEEDED
    recovered(model, before)


def test_a_stopped_process_goes_on(load):
    model = load()
    os.kill(model.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, model, "double")
        until(lambda: model._child._idle.qsize() == 1)
        os.kill(model.pid, signal.SIGCONT)
        assert asked.result(30) == 2
    assert model.restarts == 0


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("crash", Code.UNAVAILABLE, "The process of this model was killed by SIGABRT."),
        ("refuse", Code.DATA_LOSS, "a damaged model"),
        ("raise", Code.UNKNOWN, "ValueError: a defect"),
    ],
)
def test_a_failed_load_says_why_and_leaves_nothing(load, version, content, code, message):
    (version / "saved_model.pb").write_text(content)
    before = psutil.Process().children()
    with pytest.raises(StatusError) as caught:
        load()
    assert (caught.value.code, caught.value.message) == (code, message)
    assert psutil.Process().children() == before


def test_a_version_outlives_the_thread_that_loaded_it(load):
    with ThreadPoolExecutor(1) as pool:
        model = pool.submit(load).result()
    assert ask(model, "double") == 2
    assert model.restarts == 0


def test_unloading_ends_the_process(load, version):
    model = load()
    process = psutil.Process(model.pid)
    model.close()
    assert (version / "closed").exists()
    assert not process.is_running()
    assert failure(model, "double").message == "The version has been unloaded."


def test_unloading_does_not_wait_for_a_hung_call(load, monkeypatch):
    monkeypatch.setattr(child_module, "_EXIT_S", 0.2)
    model = load()
    process = psutil.Process(model.pid)
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(failure, model, "hang")
        until(lambda: model._child._idle.qsize() == 1)
        model.close()
        assert hung.result(30).code is Code.UNAVAILABLE
    assert not process.is_running()


def test_loads_and_crashes_leave_no_descriptor_and_no_thread(load):
    def cycle():
        model = load(timeout_s=60)
        failure(model, "exit")
        until(lambda: model.restarts == 1)
        model.close()

    def held():
        return psutil.Process().num_fds(), threading.active_count()

    cycle()
    before = held()
    for _ in range(3):
        cycle()
    until(lambda: held() == before, seen=held)


PARENT = textwrap.dedent(
    """
    import sys, threading
    from pathlib import Path
    import numpy as np
    from timonel.serving.runtimes.child import ChildRuntime
    from timonel.serving.settings.runtime import RuntimeSettings

    model = ChildRuntime(sys.argv[1]).load(Path(sys.argv[2]), RuntimeSettings())
    hang = {"do": np.array(b"hang", object), "x": np.array(1, np.float32)}
    threading.Thread(target=model.run, args=("serving_default", hang)).start()
    print(model.pid, flush=True)
    """
)


def test_nothing_outlives_a_killed_parent(version):
    command = [sys.executable, "-c", PARENT, REFERENCE, str(version)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until(lambda: not child.is_running())
