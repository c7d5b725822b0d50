"""Fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.buckets import MINIO, running_minio, running_moto, set_credentials
from tests.process_guard import ProcessGuard
from tests.python_path import python_path
from tests.storage.faulty import FaultyServer
from timonel.storage import Workspace, find_workspace

# Tests share the machine with others: how long an example takes says nothing about the code.
settings.register_profile("timonel", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("timonel")

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SOON_MS = 30_000
# A camera that shows a pattern, and WebGPU computed by the CPU.
_DEVICES = (
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
)
_CLEANED = ("TIMONEL_", "MLFLOW_", "WANDB_")


def pytest_configure(config: pytest.Config) -> None:
    """Have the soak written down where that was asked for, and let Ctrl-C be tested."""
    # A shell's background job starts with it ignored, which shells that it starts cannot undo.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Also for fixtures of modules, which `clean_environment` comes too late for.
    os.environ["TIMONEL_MIRRORS"] = "none"
    # Jobs and replicas of tests run programs of `tests.contracts`.
    os.environ["PYTHONPATH"] = python_path()
    config.pluginmanager.register(ProcessGuard())
    report = os.environ.get("TIMONEL_SOAK_REPORT")
    if report:
        from tests.soak_page import SoakPage

        config.pluginmanager.register(SoakPage(Path(report)))
    report = os.environ.get("TIMONEL_SERVING_SOAK_REPORT")
    if report:
        from tests.serving.hardening.page import ServingSoakPage

        config.pluginmanager.register(ServingSoakPage(Path(report)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files whose tests start processes first: started last, the longest would run alone."""
    long = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def empty_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of users' settings without any."""
    return tmp_path_factory.mktemp("config")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, empty_config: Path) -> None:
    """Hide the settings of the person who runs the tests, and mirror only where that is tested."""
    for name in os.environ:
        if name.startswith(_CLEANED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TIMONEL_MIRRORS", "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(empty_config))


@pytest.fixture(scope="module")
def fake_runtime() -> Iterator[None]:
    """Let servers find the fake runtime, as they would find a third party's.

    With it a server starts in a second; TensorFlow takes ten, and is not what is tested there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(Path(__file__).parent / "plugins"))
        yield


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A new workspace in a folder of its own."""
    return find_workspace(tmp_path / "workspace")


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, or a skipped test where it or Playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; see make test-browser"
    )
    chosen = os.environ.get("TIMONEL_BROWSER") or next(
        filter(None, map(shutil.which, _BROWSERS)), None
    )
    if chosen is None:
        pytest.skip("there is no Chromium here; on Debian: apt install chromium")
    # Chromium keeps no sandbox of its own as root.
    arguments = [*_DEVICES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    playwright.expect.set_options(timeout=_SOON_MS)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chosen, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3 endpoint at loopback: MinIO, if `TIMONEL_TEST_MINIO` is its program, else moto."""
    if MINIO is not None:
        with running_minio(MINIO) as (url, _):
            yield url
    else:
        with running_moto() as url:
            yield url


@pytest.fixture(scope="session", params=["Flink", "Spark"])
def beam_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, s3_server: str
) -> Iterator[Any]:
    """A standalone cluster of each engine of Apache Beam; starting one takes 20 s."""
    from tests.data.runners import clusters

    with pytest.MonkeyPatch.context() as patch:
        # For the workers, which the cluster's processes start.
        set_credentials(patch, s3_server)
        engine: type[clusters.Cluster] = getattr(clusters, request.param)
        with engine.running(tmp_path_factory.mktemp(request.param)) as made:
            yield made


@pytest.fixture
def faulty(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultyServer]]:
    """A bucket seen through a server with faults."""
    from timonel.storage.filesystems import forget_connections

    server = FaultyServer(s3_server)
    set_credentials(monkeypatch, server.url)
    forget_connections()
    import s3fs

    name = f"b{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/x", server
    forget_connections()
    server.close()
