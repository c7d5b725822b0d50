"""Read single records of a dataset by the index, or of any TFRecord file, for display."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data.dataset import Dataset, check_split
from timonel.data.examples import decode_example
from timonel.data.inspection.profile import Profile, Progress, as_word, ticker
from timonel.data.records import read_stream
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, ImageFormat, Split
from timonel.data.sources.imagefile import image_format, open_image
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError, did_you_mean
from timonel.storage import is_local, local_path
from timonel.storage.location import Location
from timonel.units import format_bytes

_SHOWN = 8
_NAME = re.compile(r"[^\w.-]+")
_ENDINGS: Mapping[ImageFormat, tuple[str, ...]] = {
    "jpeg": (".jpg", ".jpeg"),
    "png": (".png",),
    "gif": (".gif",),
    "bmp": (".bmp",),
    "webp": (".webp",),
}


@dataclass(frozen=True)
class Record:
    """Record of a dataset or of a TFRecord file.

    Args:
        position: Its number in the split or in the file, from 0.
        features: Lists of bytes, ints or floats by name.
        split: Its split; None in a TFRecord file.
        key: Its key; None in a TFRecord file.
        label: Its class, its classes joined by ``|``, or a regression's value; None in a file.
    """

    position: int
    features: dict[str, list[Any]]
    split: Split | None = None
    key: str | None = None
    label: str | float | None = None

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return type, number of values and content of each feature, as JSON values."""
        return {name: describe(values) for name, values in sorted(self.features.items())}

    def images(self) -> Iterator[tuple[str, bytes]]:
        """Yield a file name and the content of each encoded image."""
        found = [
            (f"{name}-{number}", kind, value)
            for name, values in self.features.items()
            for number, value in enumerate(values)
            if isinstance(value, bytes) and (kind := image_format(value[:12])) is not None
            if as_word(value) is None
        ]
        for part, kind, content in found:
            ending = Path(self.key or "").suffix.lower()
            if ending not in _ENDINGS[kind]:
                ending = _ENDINGS[kind][0]
            names = [f"{self.position:06d}", *([self.key[-120:]] if self.key else [])]
            names += [part] if len(found) > 1 else []
            stem = _NAME.sub("_", "-".join(names)).removesuffix(ending)
            yield f"{stem}{ending}", content


@dataclass(frozen=True)
class Inspection:
    """Records of a dataset or of a TFRecord file.

    Args:
        records: The chosen records.
        profile: Of a TFRecord file, the profile of all its records.
        images: Locations of the images that were written.
    """

    records: tuple[Record, ...]
    profile: Profile | None = None
    images: tuple[str, ...] = ()


def inspect(  # noqa: PLR0913 - the façade of the command line's options
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    start: int = 0,
    number: int = 5,
    label: str | None = None,
    key: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Return some records of a dataset, or of any TFRecord file with an overview of all.

    The records of a dataset are found by its index: others are not read.

    Args:
        path: Folder of a dataset, its URI in a bucket, or a TFRecord file, also with gzip.
        split: Split of the records. [default: train, or all splits to find a key]
        start: Number of the first record, from 0.
        number: Number of records.
        label: Only records of this class of a dataset.
        key: Only the record of a dataset with this key; all before it are read.
        out: Folder for the images of these records, or its URI in a bucket.
        progress: Called with the number of read and of all records.

    Raises:
        NotFoundError: There is nothing at ``path``, or no record with this key.
        SpecError: An option is wrong.
        CorruptError: A record is damaged.
    """
    if number < 0 or start < 0:
        raise SpecError(f"expected numbers of records from 0, got {min(number, start)}")
    is_file = is_local(path) and local_path(path).is_file()
    if is_file:
        if split is not None or label is not None or key is not None:
            raise SpecError(
                "a TFRecord file has no splits, labels and keys", hint="use --start and --number"
            )
        found = _inspect_file(local_path(path), start, number, progress)
    else:
        dataset = Dataset.open(path)
        records = _records(dataset, split, start, label, key, progress)
        found = Inspection(tuple(itertools.islice(records, number if key is None else 1)))
        if key is not None and not found.records:
            raise NotFoundError(f"no record of {dataset.uri} has the key {key!r}")
    if out is None:
        return found
    return Inspection(found.records, found.profile, _write_images(found.records, Location(out)))


def describe(values: Sequence[Any]) -> dict[str, Any]:
    """Return type, number and content of a feature's values, as JSON values."""
    if not values:
        return {"type": "none", "count": 0}
    first = values[0]
    if not isinstance(first, bytes):
        kind = "int64" if isinstance(first, int) else "float"
        return {"type": kind, "count": len(values), "values": list(values[:_SHOWN])}
    return {
        "type": "bytes",
        "count": len(values),
        "bytes": sum(map(len, values)),
        "values": [_describe_bytes(value) for value in values[:_SHOWN]],
    }


def _describe_bytes(value: bytes) -> str:
    word = as_word(value)
    if word is not None:
        return word
    size = format_bytes(len(value))
    kind = image_format(value[:12])
    if kind is None:
        return f"{size}, starts with {value[:16].hex(' ')}"
    try:
        image = open_image(value)
    except Exception as error:  # noqa: BLE001 - decoders raise all kinds of exceptions
        return f"damaged {kind.upper()} image, {size}: {error}"
    assert image is not None
    return f"{kind.upper()} image, {image.width} x {image.height}, {image.mode}, {size}"


def _records(
    dataset: Dataset,
    split: str | None,
    start: int,
    label: str | None,
    key: str | None,
    progress: Progress | None,
) -> Iterator[Record]:
    if label is not None and label not in dataset.labels:
        hint = did_you_mean(label, dataset.labels) or "'timonel data show' lists the labels"
        raise SpecError(f"the dataset has no label {label!r}", hint=hint)
    number = None if label is None else dataset.labels.index(label)
    splits = SPLITS if split is None and key is not None else (check_split(split or "train"),)
    tick = ticker(sum(map(dataset.count, splits)), progress)
    for each in splits:
        found: Iterable[tuple[int, bytes]]
        if label is None and key is None:
            stored = dataset.records(each)
            found = ((place, stored.payload(place)) for place in range(start, len(stored)))
        else:  # a compressed shard is read faster in its order
            found = itertools.islice(enumerate(map(tick, dataset.payloads(each))), start, None)
        for place, payload in found:
            record = record_of(dataset, each, place, payload)
            has_label = number is None or number in record.features[LABEL_FEATURE]
            if has_label and key in {None, record.key}:
                yield record


def record_of(dataset: Dataset, split: Split, place: int, payload: bytes) -> Record:
    """Return a record of a dataset from its payload."""
    features = decode_example(payload)
    try:
        key, labels = features[KEY_FEATURE][0].decode(errors="replace"), features[LABEL_FEATURE]
        name = (
            "|".join(dataset.labels[number] for number in labels)
            if dataset.labels
            else float(labels[0])
        )
    except (LookupError, AttributeError, TypeError) as error:
        raise CorruptError(
            f"record {place} of {split} in {dataset.uri} has no valid key or label",
            hint="'timonel data verify' lists all problems",
        ) from error
    return Record(place, features, split, key, name)


def _inspect_file(path: Path, start: int, number: int, progress: Progress | None) -> Inspection:
    kept: list[bytes] = []
    tick = ticker(0, progress)

    def payloads() -> Iterator[bytes]:
        for place, payload in enumerate(read_stream(path)):
            if start <= place < start + number:
                kept.append(payload)
            yield tick(payload)

    try:
        profile = Profile(map(decode_example, payloads()))
    except CorruptError as error:
        text = error.message.removeprefix(str(path)).strip()
        raise CorruptError(
            f"cannot read {path} as tf.train.Examples: {text}",
            hint="check that it is a complete TFRecord file",
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    records = (Record(start + n, decode_example(payload)) for n, payload in enumerate(kept))
    return Inspection(tuple(records), profile)


def _write_images(records: Sequence[Record], folder: Location) -> tuple[str, ...]:
    written = []
    for record in records:
        for name, content in record.images():
            (folder / name).write(content)
            written.append((folder / name).uri)
    return tuple(written)
