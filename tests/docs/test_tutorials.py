"""Every command of the tutorials is run, in the order in which a reader meets them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets import set_credentials
from tests.docs.blocks import Block, after, blocks, run, run_page

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = DOCS / "tutorials"
SEQUENCE = (
    "dataset",
    "loading",
    "job",
    "run",
    "tuning",
    "model",
    "batch",
    "devices",
    "serving",
    "endpoint",
    "scale",
)
"""Pages that one reader follows, in this order."""
PATHS = {
    "text": {"label": "praise"},
    "dates": {},
    "series": {},
    "transfer": {"label": "flower"},
    "outputs": {},
}
"""Pages from raw files to an endpoint, and a part of its answer."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Where the reader is; the pages belong together, which saves converting and training."""
    place = {"folder": tmp_path_factory.mktemp("tutorials")}
    yield place
    # A page that failed half-way may have left its server or endpoint.
    for command in (("servers", "stop"), ("endpoints", "delete", "--yes")):
        subprocess.run(
            [sys.executable, "-m", "timonel", *command, "digits"],
            cwd=place["folder"],
            capture_output=True,
            check=False,
        )


def test_each_tutorial_is_run_here() -> None:
    # The server's page is tested in a browser, and training on Kubernetes on a cluster.
    pages = {path.stem for path in TUTORIALS.glob("*.md")} - {"index", "page", "kubernetes"}
    assert pages == {
        *SEQUENCE,
        *PATHS,
        "table",
        "python",
        "columns",
        "formats",
        "buckets",
        "tfrecorder",
        "images",
        "cluster",
        "kubeflow",
    }
    assert all(blocks(TUTORIALS / f"{page}.md") for page in pages)


@pytest.mark.process
def test_blocks_are_found_and_folders_followed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nmkdir a\ncd a\n```\ntext\n```\nshown\n```\n```python\nprint(1)\n```\n")
    found = blocks(page)
    assert [block.language for block in found] == ["sh", "python"]
    assert after(found[0], tmp_path) == tmp_path / "a"
    assert run_page(page, tmp_path) == (tmp_path / "a", ["", "1\n"])
    with pytest.raises(AssertionError, match="no-such-command"):
        run(Block("sh", "no-such-command"), tmp_path)


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", SEQUENCE)
def test_a_tutorial_does_what_it_shows(page: str, reader: dict[str, Path]) -> None:
    reader["folder"], printed = run_page(TUTORIALS / f"{page}.md", reader["folder"])
    if page == "serving":
        versions = [text for text in printed if '"version"' in text]
        assert '"version": 3' in versions[0]
        assert '"version": 1' in versions[1]
        assert "stopped server" in printed[-1]
    if page == "endpoint":
        assert "version 1 says" in printed[1]
        assert printed[-1].startswith("deleted endpoint digits")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificate_of_the_serving_tutorial_is_one_that_clients_accept(tmp_path) -> None:
    page = (TUTORIALS / "serving.md").read_text()
    (command,) = re.findall(r"^openssl .*\n.*$", page, re.MULTILINE)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, capture_output=True)
    shown = re.findall(r"--(?:tls-cert|tls-key|tls-ca) (\S+)", page)
    assert all((tmp_path / name).is_file() for name in shown)
    serves = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serves.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    asks = ssl.create_default_context(cafile=tmp_path / "server.pem")

    def answer(there: socket.socket) -> None:
        serves.wrap_socket(there, server_side=True).close()

    for name in ("localhost", "127.0.0.1"):
        here, there = socket.socketpair()
        with here, there:
            thread = threading.Thread(target=answer, args=(there,))
            thread.start()
            asks.wrap_socket(here, server_hostname=name).close()
            thread.join()


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_tutorial_on_python_does_what_it_shows(tmp_path: Path) -> None:
    try:
        _, printed = run_page(TUTORIALS / "python.md", tmp_path)
    finally:
        for name in ("flowers", "sizes"):
            stop = [sys.executable, "-m", "timonel", "servers", "stop", name]
            subprocess.run(stop, cwd=tmp_path, capture_output=True, check=False)
    assert "setosa" in printed[2]
    assert "area 18.0" in printed[4]
    assert "stopped server" in printed[4]


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PATHS)
def test_a_path_to_an_endpoint_does_what_it_shows(page: str, tmp_path: Path) -> None:
    try:
        _, printed = run_page(TUTORIALS / f"{page}.md", tmp_path)
    finally:
        stop = [sys.executable, "-m", "timonel", "endpoints", "delete", "--yes"]
        (name,) = re.findall(r"--name (\w+)", (TUTORIALS / f"{page}.md").read_text())
        subprocess.run([*stop, name], cwd=tmp_path, capture_output=True, check=False)
    assert "the exported model predicts the same" in printed[-2] or page == "series"
    first, *more = json.loads(printed[-1].rpartition("deleted")[0])["predictions"]
    assert len(more) == (page == "dates")
    if page == "outputs":
        assert first.keys() == {"rent", "expensive"}
    elif PATHS[page]:
        assert first | PATHS[page] == first
    else:
        assert len(first) == 1


@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_table_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    _, printed = run_page(TUTORIALS / "table.md", tmp_path)
    assert "fast" in printed[-1] or "slow" in printed[-1]


@pytest.mark.process
def test_the_tutorial_on_clusters_does_what_it_shows(tmp_path: Path) -> None:
    _, printed = run_page(TUTORIALS / "cluster.md", tmp_path)
    assert "kind: RoleBinding" in (tmp_path / "rights.yaml").read_text()
    for command in ("gcloud container node-pools create", "eksctl create", "az aks nodepool add"):
        assert command in printed[1]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_tutorial_on_images_does_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, printed = run_page(TUTORIALS / "images.md", tmp_path)
    assert printed[0].startswith("oci:../image@sha256:")
    assert 0 < json.loads(printed[1])["uploaded_bytes"] < 1000
    assert printed[2].startswith("sha256:")


@pytest.mark.process
@pytest.mark.timeout(120)
def test_the_tutorial_on_kubeflow_does_what_it_shows(tmp_path: Path) -> None:
    _, printed = run_page(TUTORIALS / "kubeflow.md", tmp_path)
    assert "I am chief 0 with ['--epochs=3']" in printed[-2]
    assert "2 replicas, 8 steps" in printed[-1]


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["columns", "formats", "tfrecorder"])
def test_the_tutorials_on_sources_do_what_they_show(page: str, tmp_path: Path) -> None:
    folder, _ = run_page(TUTORIALS / f"{page}.md", tmp_path)
    assert (
        len(list((folder / "data").glob("*/manifest.json")))
        == {"columns": 2, "formats": 8, "tfrecorder": 2}[page]
    )


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_tutorial_on_buckets_does_what_it_shows(
    tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs = pytest.importorskip("s3fs")
    set_credentials(monkeypatch, s3_server)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("photos")
    _, printed = run_page(TUTORIALS / "buckets.md", tmp_path)
    assert "600" in printed[-1]
