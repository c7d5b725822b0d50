"""Image layers: tar archives whose bytes depend on names, contents and modes only."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from timonel.storage.atomic import replacing

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"


@dataclass(frozen=True)
class LayerFile:
    """File, symbolic link or folder of a layer.

    Args:
        name: Path in the image, relative to its root; that of a folder ends with a slash.
        source: The file with its content, or the content.
        link: Target of a symbolic link, instead of a content.
    """

    name: str
    source: Path | bytes = b""
    link: str | None = None
    mode: int = 0o644


@dataclass(frozen=True)
class Layer:
    """Layer of an image, in a file or in a registry.

    Args:
        digest: Digest of the compressed archive, ``sha256:<hex>``.
        size: Its size in bytes.
        path: File with the compressed archive; None for a layer of a base in a registry.
    """

    digest: str
    size: int
    diff_id: str
    media_type: str = LAYER_TYPE
    path: Path | None = None

    @property
    def descriptor(self) -> dict[str, Any]:
        """Descriptor of the layer in a manifest."""
        return {"mediaType": self.media_type, "size": self.size, "digest": self.digest}


def files_below(folder: Path, prefix: str = "") -> Iterator[LayerFile]:
    """Yield the files and symbolic links below a folder.

    Args:
        prefix: Where the folder's content is in the image, such as ``app/``.
    """
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in [*names, *links]:
            path = Path(parent, name)
            yield file_at(path, prefix + path.relative_to(folder).as_posix())


def file_at(path: Path, name: str) -> LayerFile:
    """Return the file or symbolic link at a path as one of a layer."""
    if path.is_symlink():
        return LayerFile(name, link=str(path.readlink()))
    return LayerFile(name, path, mode=0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def write_layer(files: Iterable[LayerFile], target: Path) -> Layer:
    """Write a layer, compressed with Zstandard.

    Args:
        files: Its files, in any order. Owner and times are left out; missing folders are added.
    """
    import pyarrow as pa  # noqa: PLC0415 - it is needed here only, for its compression

    with replacing(target) as file:
        compressed = _Digesting(file)
        with pa.CompressedOutputStream(pa.PythonFile(compressed, "w"), "zstd") as stream:
            plain = _Digesting(stream)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.GNU_FORMAT) as archive:
                _add_all(archive, sorted(files, key=lambda each: each.name))
    return Layer(compressed.digest, compressed.size, plain.digest, path=target)


def _add_all(archive: tarfile.TarFile, files: Iterable[LayerFile]) -> None:
    folders: set[str] = set()
    for each in files:
        path = PurePosixPath(each.name)
        for parent in reversed(path.parents[:-1]):
            if str(parent) not in folders:
                folders.add(str(parent))
                _add(archive, LayerFile(f"{parent}/", mode=0o755))
        if each.name.endswith("/"):
            folders.add(str(path))
        _add(archive, each)


def _add(archive: tarfile.TarFile, each: LayerFile) -> None:
    found = tarfile.TarInfo(each.name)
    found.mode = each.mode
    if each.name.endswith("/"):
        found.type = tarfile.DIRTYPE
        archive.addfile(found)
    elif each.link is not None:
        found.type, found.linkname, found.mode = tarfile.SYMTYPE, each.link, 0o777
        archive.addfile(found)
    elif isinstance(each.source, bytes):
        found.size = len(each.source)
        archive.addfile(found, io.BytesIO(each.source))
    else:
        with each.source.open("rb") as content:
            found.size = os.fstat(content.fileno()).st_size
            archive.addfile(found, content)


class _Digesting(io.RawIOBase):
    """Writable stream that passes bytes on, and counts and digests them."""

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__()
        self._target = target
        self._sha = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        """Digest of the bytes so far."""
        return f"sha256:{self._sha.hexdigest()}"

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._sha.update(content)
        self._target.write(content)
        self.size += len(content)
        return len(content)
