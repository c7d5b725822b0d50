"""Publish layers, manifests and indexes, in a registry or an OCI layout."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from timonel.containers.image import INDEX_TYPE, MANIFEST_TYPE, encode, image_index, image_manifest
from timonel.containers.layers import Layer
from timonel.containers.layout import PREFIX, Layout
from timonel.containers.reference import Reference
from timonel.containers.registry import Registry
from timonel.storage.digests import digest_bytes
from timonel.units import format_bytes

_UPLOADS = 4

Place = Registry | Layout
"""Where images are."""


@dataclass(frozen=True)
class Base:
    """Base of an image.

    Args:
        source: Where its layers are; None: all have files.
    """

    layers: tuple[Layer, ...]
    config: Mapping[str, Any]
    source: Place | None = None


def open_place(text: str, *, plain_http: bool | None = None) -> Place:
    """Return the place of an image: ``oci:FOLDER[:TAG]``, or a name in a registry."""
    if text.startswith(PREFIX):
        return Layout.parse(text)
    return Registry(Reference.parse(text), plain_http=plain_http)


def publish_layers(
    place: Place,
    base: Base,
    own: Sequence[Layer],
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Publish the layers that a place lacks; return the number of uploaded bytes.

    Args:
        base: The base, whose layers the place may lack.
    """
    missing = [each for each in [*base.layers, *own] if not place.has_blob(each.digest)]
    source = base.source
    mount_from = None
    if (
        isinstance(source, Registry)
        and isinstance(place, Registry)
        and source.reference.host == place.reference.host
    ):
        mount_from = source.reference.repository
    uploads = [each for each in missing if mount_from is None or each not in base.layers]
    if uploads and isinstance(place, Registry):
        size = format_bytes(sum(each.size for each in uploads))
        progress(f"uploading {size} to {place.reference.host}")

    def push(layer: Layer) -> int:
        if (
            mount_from is not None
            and isinstance(place, Registry)
            and layer in base.layers
            and place.mount_blob(layer.digest, mount_from)
        ):
            return 0
        if layer.path is None and isinstance(source, Registry):
            path = Path(scratch, layer.digest.replace(":", "-"))
            source.fetch(layer.digest, path)
            layer = replace(layer, path=path)
        return layer.size if place.push_layer(layer) else 0

    with (
        tempfile.TemporaryDirectory(prefix="timonel-base-") as scratch,
        ThreadPoolExecutor(_UPLOADS) as pool,
    ):
        return sum(pool.map(push, missing))


def publish_manifest(place: Place, config: bytes, layers: Sequence[Layer]) -> bytes:
    """Publish configuration and manifest of an image without a tag; return the manifest."""
    manifest = encode(image_manifest(config, layers))
    place.push_bytes(config)
    place.push_manifest(manifest, MANIFEST_TYPE, digest_bytes(manifest))
    return manifest


def publish_tag(
    place: Place, manifests: Sequence[bytes], descriptors: Sequence[Mapping[str, Any]]
) -> str:
    """Give the tag to an image, or to the index of several; return its digest."""
    if len(manifests) == 1:
        content, media_type = manifests[0], MANIFEST_TYPE
    else:
        content, media_type = encode(image_index(descriptors)), INDEX_TYPE
    place.push_tag(content, media_type)
    return digest_bytes(content)
