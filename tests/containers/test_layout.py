from __future__ import annotations

import errno
import json
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timonel.containers.image import MANIFEST_TYPE, encode, image_manifest
from timonel.containers.layers import Layer, LayerFile, write_layer
from timonel.containers.layout import Layout
from timonel.errors import CorruptError, InputError, NotFoundError

_EVIL = "sha256:../../../planted.sh"


def layer_in(folder: Path, content: bytes = b"1") -> Layer:
    folder.mkdir(parents=True, exist_ok=True)
    return write_layer([LayerFile("a", content)], folder / "layer")


def tags(root: Path) -> set[str]:
    images = json.loads((root / "index.json").read_bytes())["manifests"]
    return {each["annotations"]["org.opencontainers.image.ref.name"] for each in images}


@pytest.mark.parametrize("digest", [_EVIL, "sha512:" + "0" * 64, "sha256:" + "A" * 64, "x"])
def test_names_of_files_that_are_no_digests_are_refused(digest: str, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "images")
    layer = layer_in(tmp_path)
    with pytest.raises(CorruptError, match="is no SHA-256 digest"):
        layout.push_layer(Layer(digest, layer.size, layer.diff_id, path=layer.path))
    with pytest.raises(CorruptError, match="is no SHA-256 digest"):
        layout.blob(digest)
    assert not layout.root.exists()


@pytest.mark.parametrize("place", ["config", "layers"])
def test_manifests_that_name_other_files_are_refused(place: str, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "images")
    manifest = image_manifest(b"{}", [layer_in(tmp_path)])
    entry = manifest[place] if place == "config" else manifest[place][0]
    entry["digest"] = _EVIL
    layout.push_tag(encode(manifest), MANIFEST_TYPE)
    with pytest.raises(CorruptError, match=r"names '.*planted.sh', which is no SHA-256 digest"):
        layout.manifest()


@pytest.mark.parametrize(
    "index",
    [[], {"manifests": [{}]}, {"manifests": {}}, {"manifests": [{"digest": _EVIL}]}],
)
def test_an_index_of_something_else_is_refused(index: Any, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptError):
        Layout(tmp_path).manifest()


@pytest.mark.parametrize("field", [{"size": "1"}, {"mediaType": 7}])
def test_layers_with_fields_of_other_types_are_refused(
    field: dict[str, Any], tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "images")
    manifest = image_manifest(b"{}", [layer_in(tmp_path)])
    manifest["layers"][0] |= field
    layout.push_tag(encode(manifest), MANIFEST_TYPE)
    with pytest.raises(CorruptError, match="is no image"):
        layout.manifest()


def test_a_damaged_layer_is_not_copied(tmp_path: Path) -> None:
    layout, layer = Layout(tmp_path / "images"), layer_in(tmp_path)
    assert layer.path is not None
    layer.path.write_bytes(b"other")
    with pytest.raises(CorruptError, match="is damaged"):
        layout.push_layer(layer)
    layer.path.unlink()
    with pytest.raises(NotFoundError, match="no layer at"):
        layout.push_layer(layer)
    assert [path for path in layout.root.rglob("*") if path.is_file()] == []


def test_a_full_disk_leaves_no_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, layer = Layout(tmp_path / "images"), layer_in(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        layout.push_layer(layer)
    assert [path for path in layout.root.rglob("*") if path.is_file()] == []


def _push(root: Path, folder: Path, name: str, start: Any) -> None:
    layer = layer_in(folder / name, b"1" * 20_000_000)
    start.wait(60)
    Layout(root, name).push_layer(layer)
    Layout(root, name).push_tag(encode(image_manifest(b"{}", [layer])), MANIFEST_TYPE)


def _processes(count: int) -> tuple[Any, Callable[..., Any]]:
    context = multiprocessing.get_context("spawn")
    return context.Barrier(count), context.Process


def _threads(count: int) -> tuple[Any, Callable[..., Any]]:
    return threading.Barrier(count), threading.Thread


@pytest.mark.process
@pytest.mark.parametrize("kind", [_processes, _threads])
def test_builds_at_the_same_time_write_into_one_folder(
    kind: Callable[[int], tuple[Any, Callable[..., Any]]], tmp_path: Path
) -> None:
    names = [f"v{number}" for number in range(4)]
    root = tmp_path / "images"
    start, make = kind(len(names))
    pushes = [make(target=_push, args=(root, tmp_path, name, start)) for name in names]
    for each in pushes:
        each.start()
    for each in pushes:
        each.join(60)
    assert tags(root) == set(names)
    assert not list(root.rglob(".tmp-*"))
    assert [getattr(each, "exitcode", 0) for each in pushes] == [0] * len(names)
