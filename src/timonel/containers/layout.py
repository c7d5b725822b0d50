"""OCI image layouts: folders that hold images, as ``skopeo copy oci:`` and others read them."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from timonel.containers.image import parse_manifest
from timonel.containers.layers import Layer
from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError
from timonel.storage.atomic import create_bytes, replacing, unwritable, write_json
from timonel.storage.digests import digest_bytes, is_digest
from timonel.storage.locks import exclusive

PREFIX = "oci:"
_TAG = "org.opencontainers.image.ref.name"
_VERSION = b'{"imageLayoutVersion": "1.0.0"}'
_BLOCK_BYTES = 1 << 20


class Layout:
    """One image of a folder of images.

    Args:
        tag: Tag of the image; None: the only one.
        digest: Digest of the image, which takes precedence over the tag.
    """

    def __init__(self, root: Path, tag: str | None = None, digest: str | None = None) -> None:
        self.root = root
        self.tag = tag
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parse ``oci:FOLDER[:TAG][@DIGEST]``."""
        name, at, digest = text.removeprefix(PREFIX).partition("@sha256:")
        folder, _, tag = name.partition(":")
        return cls(Path(folder), tag or None, f"sha256:{digest}" if at else None)

    def manifest(self, version: str | None = None) -> tuple[dict[str, Any], str]:
        """Return a manifest or index, and its digest.

        Args:
            version: A digest; None: that of the image.
        """
        if version is None:
            version = self.digest or self._tagged(self.tag)
        return parse_manifest(self.blob(version), f"{PREFIX}{self.root}"), version

    def blob(self, digest: str) -> bytes:
        """Return a blob."""
        try:
            content = self.path(digest).read_bytes()
        except OSError as error:
            raise NotFoundError(f"{self.root} lacks the blob {digest}") from error
        if digest_bytes(content) != digest:
            raise CorruptError(f"the blob {digest} of {self.root} is damaged")
        return content

    def path(self, digest: str) -> Path:
        """Return the file of a blob."""
        if not is_digest(digest):
            raise CorruptError(f"{digest[:80]!r} in {self.root} is no SHA-256 digest")
        return self.root / "blobs" / digest.replace(":", "/", 1)

    def has_blob(self, digest: str) -> bool:
        """Return whether the folder has a blob."""
        return self.path(digest).is_file()

    def push_layer(self, layer: Layer) -> bool:
        """Copy a layer into the folder, unless it is there; return whether it was copied."""
        target = self.path(layer.digest)
        if target.is_file() or layer.path is None:
            return False
        if not layer.path.is_file():
            raise NotFoundError(f"no layer at {layer.path}", hint="use another base")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(target, error) from error
        sha = hashlib.sha256()
        with replacing(target) as file:
            with layer.path.open("rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    sha.update(block)
                    file.write(block)
            if f"sha256:{sha.hexdigest()}" != layer.digest:
                raise CorruptError(f"the layer at {layer.path} is damaged", hint="build it again")
        return True

    def push_bytes(self, content: bytes) -> None:
        """Write a small blob, unless it is there."""
        with contextlib.suppress(AlreadyExistsError):
            create_bytes(self.path(digest_bytes(content)), content)

    def push_manifest(self, content: bytes, media_type: str, version: str) -> None:  # noqa: ARG002
        """Write a manifest or an index."""
        self.push_bytes(content)

    def push_tag(self, content: bytes, media_type: str) -> None:
        """Give the tag to a manifest or an index; other images of the folder stay."""
        self.push_bytes(content)
        tag = self.tag or "latest"
        descriptor = {
            "mediaType": media_type,
            "size": len(content),
            "digest": digest_bytes(content),
        }
        entry = {**descriptor, "annotations": {_TAG: tag}}
        version = self.root / "oci-layout"
        with contextlib.suppress(AlreadyExistsError):
            create_bytes(version, _VERSION)
        with exclusive(version):  # other builds write their tags into the same file
            others = [each for each in self._images() if _tag(each) != tag]
            index = {"schemaVersion": 2, "manifests": [*others, entry]}
            write_json(self.root / "index.json", index)

    def named(self, digest: str) -> str:
        """Return the image's name with a digest."""
        return f"{PREFIX}{self.root}@{digest}"

    def _images(self) -> list[dict[str, Any]]:
        try:
            content = (self.root / "index.json").read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CorruptError(f"{self.root}/index.json cannot be read: {error}") from error
        return list(parse_manifest(content, f"{PREFIX}{self.root}").get("manifests", ()))

    def _tagged(self, tag: str | None) -> str:
        images = self._images()
        if tag is not None:
            images = [each for each in images if _tag(each) == tag]
        if len(images) != 1:
            what = "no image" if not images else f"{len(images)} images"
            raise NotFoundError(
                f"{self.root} has {what}{f' with the tag {tag}' if tag else ''}",
                hint="name one as oci:FOLDER:TAG",
            )
        digest: str = images[0]["digest"]
        return digest


def _tag(image: dict[str, Any]) -> str | None:
    return (image.get("annotations") or {}).get(_TAG)
