"""Sources in buckets and on web servers, over HTTP."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from tests.data.conftest import MakeCsv, MakeImages
from tests.storage.faulty import FaultyServer
from timonel.data import convert
from timonel.data.sources import SourceOptions, choose_source
from timonel.data.sources.images import INCOMPARABLE
from timonel.data.sources.tablefile import MemoryTable
from timonel.data.tfrecorder import write_tfrecorder
from timonel.errors import DataError, InputError, NotFoundError
from timonel.storage import Workspace
from timonel.storage.location import Location
from timonel.storage.object_store import ObjectStore

Faulty = tuple[str, FaultyServer]


class Web:
    """Web server for a folder.

    Attributes:
        failing: Status of paths that fail.
        cut: Paths whose content is cut off at the next request.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failing: dict[str, int] = {}
        self.cut: set[str] = set()
        self.seen: list[str] = []
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def send_head(self) -> object:  # type: ignore[override] # a file or None
                outer.seen.append(f"{self.command} {self.path}")
                if self.command == "GET" and self.path in outer.cut:
                    outer.cut.remove(self.path)
                    self.send_response(200)
                    self.send_header("Content-Length", "8")
                    self.end_headers()
                    return io.BytesIO(b"\x89PNG\r\n\x1a\n")
                if status := outer.failing.get(self.path):
                    self.send_error(status)
                    return None
                return super().send_head()

        handler = functools.partial(Handler, directory=str(root))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "www").mkdir()
    server = Web(tmp_path / "www")
    yield server
    server.close()


def upload(folder: Path, uri: str) -> None:
    s3fs.S3FileSystem().put(str(folder), uri, recursive=True)


def digests(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.glob("*.tfrecord"))]


@pytest.mark.slow
def test_a_folder_of_images_in_a_bucket(
    faulty: Faulty, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    uri, server = faulty
    root = make_images()
    (root / "cat" / "notes.txt").write_text("hello")
    (root / "dog" / "bad.png").write_bytes(b"no image")
    shutil.copyfile(root / "cat" / "000.png", root / "cat" / "copy.png")
    upload(root, f"{uri}/raw")
    dataset = convert(f"{uri}/raw", tmp_path / "set", workspace=workspace, max_rejected=0.1)
    manifest = dataset.manifest
    assert (dataset.count(), manifest.labels) == (21, ("cat", "dog"))
    assert manifest.source.uri == f"{uri}/raw"
    assert manifest.source.ignored == ("cat/notes.txt",)
    assert manifest.source.duplicates[0].keys == ("cat/000.png", "cat/copy.png")
    assert manifest.source.rejected[0].key == "dog/bad.png"
    # One listing per folder, one request per image.
    assert len([each for each in server.seen if each[0] == "GET"]) < 21 + 2 + 12
    again = convert(f"{uri}/raw", tmp_path / "again", workspace=workspace, max_rejected=0.1)
    assert digests(tmp_path / "again") == digests(tmp_path / "set")
    assert again.digest == dataset.digest


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
def test_a_table_in_a_bucket(
    faulty: Faulty, tmp_path: Path, workspace: Workspace, ending: str
) -> None:
    uri, _ = faulty
    table = pa.table({"x": [i / 7 for i in range(40)], "y": ["a", "b"] * 20})
    path = tmp_path / f"rows.{ending}"
    text = "x,y\n" + "".join(f"{row['x']!r},{row['y']}\n" for row in table.to_pylist())
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        path.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    upload(path, f"{uri}/{path.name}")
    local = convert(path, tmp_path / "local", label="y", workspace=workspace)
    remote = convert(f"{uri}/{path.name}", tmp_path / "set", label="y", workspace=workspace)
    assert remote.digest == local.digest
    assert remote.manifest.source.digest == local.manifest.source.digest
    upload(path, f"{uri}/parts/1.{ending}")
    upload(path, f"{uri}/parts/2.{ending}")
    for place in ("parts", f"parts/*.{ending}"):
        target = tmp_path / place.replace("/", "-").replace("*", "all")
        parts = convert(f"{uri}/{place}", target, label="y", workspace=workspace)
        assert parts.count() == 80


def test_a_list_of_images_in_a_bucket(
    faulty: Faulty, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    uri, _ = faulty
    upload(make_images(), f"{uri}/raw")
    names = [f"raw/{label}/{i:03d}.png" for label in ("cat", "dog") for i in range(10)]
    names[3] = f"{uri}/{names[3]}"
    names[15] = "raw/dog/missing.png"
    lines = [f"UNASSIGNED,{name},{'dog' if 'dog' in name else 'cat'}" for name in names]
    path = tmp_path / "list.csv"
    path.write_text("\n".join(["split,image_uri,label", *lines]))
    upload(path, f"{uri}/list.csv")
    dataset = convert(f"{uri}/list.csv", tmp_path / "set", workspace=workspace, max_rejected=0.1)
    assert dataset.count() == 19
    (rejected,) = dataset.manifest.source.rejected
    assert (rejected.key, rejected.reason) == (
        "raw/dog/missing.png",
        "raw/dog/missing.png not found (line 17)",
    )


def test_a_busy_server_is_asked_again(
    faulty: Faulty, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    uri, server = faulty
    upload(make_images(), f"{uri}/raw")
    failed: set[str] = set()

    def fault(method: str, path: str, _: str) -> str | None:
        if method == "GET" and path.endswith("5.png") and path not in failed:
            failed.add(path)
            return "busy"
        return None

    server.fault = fault
    dataset = convert(f"{uri}/raw", tmp_path / "set", workspace=workspace)
    assert (dataset.count(), len(failed)) == (20, 2)


def test_an_image_that_arrives_cut_off_is_asked_again_and_not_rejected(
    web: Web, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    shutil.copytree(make_images(), web.root / "raw")
    names = [f"{label}/{i:03d}.png" for label in ("cat", "dog") for i in range(10)]
    table = tmp_path / "list.csv"
    lines = [f"{web.url}/raw/{name},{name.partition('/')[0]}" for name in names]
    table.write_text("\n".join(["image_uri,label", *lines]))
    web.cut = {"/raw/cat/003.png"}
    with pytest.raises(DataError, match=r"is not encrypted: use --allow-http"):
        convert(table, tmp_path / "set", workspace=workspace)
    assert not web.seen
    with pytest.raises(DataError, match="is a private address: use --allow-private"):
        convert(table, tmp_path / "set", workspace=workspace, allow_http=True)
    assert not web.seen
    dataset = convert(
        table, tmp_path / "set", workspace=workspace, allow_http=True, allow_private=True
    )
    assert (dataset.count(), web.cut) == (20, set())


def test_a_server_that_is_away_fails_the_conversion_and_rejects_nothing(
    faulty: Faulty,
    make_images: MakeImages,
    tmp_path: Path,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ObjectStore.__init__.__kwdefaults__, "patience_s", 0.3)
    uri, server = faulty
    upload(make_images(), f"{uri}/raw")
    server.fault = lambda method, path, _: "503" if path.endswith("7.png") else None
    with pytest.raises(InputError, match=r"cannot read .*7\.png: the server does not answer"):
        convert(f"{uri}/raw", tmp_path / "set", workspace=workspace)
    assert not (tmp_path / "set").exists()
    server.fault = lambda *_: None
    assert convert(f"{uri}/raw", tmp_path / "set", workspace=workspace).count() == 20


def test_credentials_that_are_refused(faulty: Faulty, tmp_path: Path) -> None:
    uri, server = faulty
    server.fault = lambda *_: "denied"
    with pytest.raises(InputError, match=r"access denied: .*check your credentials"):
        convert(f"{uri}/raw", tmp_path / "set")


def test_nothing_in_the_bucket(faulty: Faulty, tmp_path: Path) -> None:
    uri, _ = faulty
    with pytest.raises(NotFoundError, match=r"no folder or file at s3://.*/none: check the URI"):
        convert(f"{uri}/none", tmp_path / "set")


def test_images_and_tables_on_a_web_server(
    web: Web, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    shutil.copytree(make_images(), web.root / "raw")
    paths = sorted((web.root / "raw").rglob("*.png"))
    names = [path.relative_to(web.root).as_posix() for path in paths]
    names[2] = f"{web.url}/{names[2]}"
    names.append("raw/cat/missing.png")
    lines = [f"{name},{'dog' if 'dog' in name else 'cat'}" for name in names]
    (web.root / "list.csv").write_text("\n".join(["image_uri,label", *lines]))
    uri = f"{web.url}/list.csv?version=1"
    dataset = convert(uri, tmp_path / "set", workspace=workspace, max_rejected=0.1)
    assert dataset.count() == 20
    (rejected,) = dataset.manifest.source.rejected
    assert (rejected.key, rejected.reason) == (
        "raw/cat/missing.png",
        "raw/cat/missing.png not found (line 22)",
    )
    assert INCOMPARABLE in dataset.manifest.source.warnings


def test_errors_of_a_web_server(
    web: Web, make_csv: MakeCsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ObjectStore.__init__.__kwdefaults__, "patience_s", 0.3)
    shutil.copyfile(make_csv(), web.root / "rows.csv")
    uri = f"{web.url}/rows.csv"
    options = SourceOptions(label="good")
    source = choose_source(Location(uri), options)(Location(uri), options)
    assert len(list(source.scan().entries)) == 40
    for status, message in (
        (403, "access denied"),
        (404, "no folder or file at"),
        (503, "the server does not answer"),
    ):
        web.failing["/rows.csv"] = status
        with pytest.raises(InputError, match=message):
            convert(uri, tmp_path / "set")
    web.close()
    with pytest.raises(InputError, match=r"/rows\.csv: the server does not answer"):
        convert(uri, tmp_path / "set")


def test_the_layout_of_tfrecorder_in_a_bucket(
    faulty: Faulty, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    uri, _ = faulty
    root = make_images(count=4)
    upload(root, f"{uri}/raw")
    rows = [
        {"split": ("TRAIN", "TEST")[index % 2], "image_uri": f"{uri}/raw/{path}", "label": path[:3]}
        for index, path in enumerate(
            sorted(file.relative_to(root).as_posix() for file in root.rglob("*.png"))
        )
    ]
    result = write_tfrecorder(MemoryTable(pa.Table.from_pylist(rows)), f"{uri}/out")
    assert result["tfrecord_dir"].startswith(f"{uri}/out/tfrecorder-")
    dataset = convert(result["tfrecord_dir"], tmp_path / "set", workspace=workspace, splits=[1])
    assert (dataset.count(), dataset.manifest.labels) == (8, ("0", "1"))


@pytest.mark.parametrize(("fault", "lasting"), [("cut", False), ("flip", False), ("flip", True)])
def test_a_table_that_arrives_damaged(
    faulty: Faulty,
    tmp_path: Path,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    lasting: bool,
) -> None:
    uri, server = faulty
    rows = "".join(f"{index / 7},{'ab'[index % 2]}\n" for index in range(40))
    (tmp_path / "rows.csv").write_text(f"x,y\n{rows}")
    upload(tmp_path / "rows.csv", f"{uri}/rows.csv")
    seen: list[str] = []

    def damage(method: str, path: str, _: str) -> str | None:
        if method != "GET" or not path.endswith("rows.csv") or (seen and not lasting):
            return None
        seen.append(path)
        return fault

    server.fault = damage
    if lasting:
        monkeypatch.setitem(ObjectStore.__init__.__kwdefaults__, "patience_s", 0.3)
        with pytest.raises(InputError, match=r"cannot read .*rows\.csv: it arrives damaged"):
            convert(f"{uri}/rows.csv", tmp_path / "set", label="y", workspace=workspace)
        assert not (tmp_path / "set").exists()
        return
    remote = convert(f"{uri}/rows.csv", tmp_path / "set", label="y", workspace=workspace)
    local = convert(tmp_path / "rows.csv", tmp_path / "local", label="y", workspace=workspace)
    assert remote.digest == local.digest
    assert seen
