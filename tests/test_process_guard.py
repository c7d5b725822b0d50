"""The guard that makes tests say that they start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.process
pytest_plugins = ["pytester"]

TESTS = """
import os, subprocess, sys, threading, time
import pytest

@pytest.fixture(scope="module")
def server():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_fixture(server): pass
def test_fixture_that_is_ready(server): pass
def test_call(): subprocess.run([sys.executable, "-c", ""], check=True)
def test_tool(): subprocess.run(["true"], check=True)
def test_fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()
def test_exec_after_fork():
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", ""])
    os.wait()
def test_system(): assert os.system(f"{sys.executable} -c ''") == 0
def test_shell(): subprocess.run(f"cd / && exec {sys.executable} -c ''", shell=True, check=True)
def test_spawn(): os.waitpid(os.posix_spawn(sys.executable, ["python", "-c", ""], {}), 0)
def test_fixture_by_name(request): request.getfixturevalue("server")
@pytest.mark.process
def test_marked(server): subprocess.run([sys.executable, "-c", "", b"\\xff"], check=True)
@pytest.mark.process
def test_with_a_thread_that_stays():
    def later():
        time.sleep(0.3)
        subprocess.run([sys.executable, "-c", ""], check=True)
    threading.Thread(target=later).start()
def test_nothing(): time.sleep(0.6)
"""


def test_tests_that_start_programs_need_the_marker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(
        "from tests.process_guard import ProcessGuard\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'process: starts one')\n"
        "    config.pluginmanager.register(ProcessGuard())\n"
    )
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=8)
    failed = {line.split("::")[1].split()[0] for line in result.outlines if "FAILED" in line}
    assert failed == {
        "test_fixture",
        "test_fixture_that_is_ready",
        "test_call",
        "test_exec_after_fork",
        "test_system",
        "test_shell",
        "test_spawn",
        "test_fixture_by_name",
    }
