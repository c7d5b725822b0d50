"""Bringing one version into the cache, or finding it there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from timonel.models.schema import KEPT_REFERENCE, VERSION_FILE
from timonel.serving.manager.buckets.cache import ModelCache
from timonel.serving.manager.buckets.download import CONTENT, Download, Wait
from timonel.serving.manager.buckets.listing import Blob
from timonel.serving.manager.buckets.store import Bucket, BucketError
from timonel.serving.manager.sources import Held
from timonel.serving.status import Code, StatusError
from timonel.storage import digest_tree

_ROUNDS = 3
_OTHERS_S = 0.2
_EXTRA = "assets.extra"


@dataclass(frozen=True)
class Order:
    """A version that is wanted.

    Args:
        number: Its number.
        name: Its folder's name in the bucket.
        fingerprint: Of its objects.
        blobs: Its objects; none where the bucket could not be asked.
    """

    number: int
    name: str
    fingerprint: str
    blobs: tuple[Blob, ...] | None


def bring(order: Order, bucket: Bucket, cache: ModelCache, wait: Wait) -> Held:
    """Return a version's folder in the cache, verified; download it if need be.

    Args:
        order: The version.
        bucket: Where it is.
        cache: Where it is to be.
        wait: Waits some seconds; true when it is not wanted any more.

    Raises:
        StatusError: It cannot be had.
    """
    rounds = 0
    while not wait(0):
        held = cache.hold(bucket.uri, order.number, order.fingerprint)
        if held is not None:
            return held
        if order.blobs is None:
            raise BucketError(
                Code.UNAVAILABLE,
                f"version {order.number} of {bucket.uri} is not in the cache, and the bucket "
                "cannot be reached",
            )
        if rounds == _ROUNDS:
            raise BucketError(
                Code.DATA_LOSS, f"the cache in {cache.root} does not keep what is written to it"
            )
        with cache.part(bucket.uri, order.number) as part:
            # Another server may have finished it just before.
            if part is not None and not cache.has(bucket.uri, order.number, order.fingerprint):
                rounds += 1
                _download(order, order.blobs, bucket, cache, part, wait)
                continue
        # Another server downloads it, or is about to let it be used.
        wait(_OTHERS_S)
    raise StatusError(Code.CANCELLED, "the version is not wanted any more")


def _download(
    order: Order,
    blobs: tuple[Blob, ...],
    bucket: Bucket,
    cache: ModelCache,
    part: Path,
    wait: Wait,
) -> None:
    download = Download(bucket, order.name, blobs, part, wait)
    cache.make_room(download.left_bytes, part)
    sums = download.run()
    if not is_as_published(part / CONTENT):
        shutil.rmtree(part, ignore_errors=True)
        raise BucketError(
            Code.DATA_LOSS,
            f"{bucket.uri}/{order.name} does not have the digest that it was published with: it "
            "is not all there yet, or was changed",
        )
    cache.adopt(part, bucket.uri, order.number, order.fingerprint, sums)


def is_as_published(folder: Path) -> bool:
    """Tell whether a version has the digest that timonel published it with.

    Of versions by others, which have none, nothing can be told, and nothing is wrong. What was
    put into ``assets.extra`` later, such as requests to warm up with, does not count.
    """
    try:
        digest = json.loads((folder / VERSION_FILE).read_bytes()).get("digest")
    except (OSError, ValueError, AttributeError):
        return True
    if digest is None:
        return True
    extra = {f"{_EXTRA}/{path.relative_to(folder / _EXTRA)}" for path in _files(folder / _EXTRA)}
    return digest in {
        digest_tree(folder, exclude={VERSION_FILE, KEPT_REFERENCE}),
        digest_tree(folder, exclude=extra),
    }


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
