"""TFRecords with one image per record: TFRecorder, TensorFlow Datasets, own scripts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from timonel.data.examples import decode_example
from timonel.data.manifest import Rejected
from timonel.data.records import Span, read_stream
from timonel.data.schema import (
    IMAGE_FEATURE,
    KEY_FEATURE,
    ColumnRole,
    ImageSchema,
    Split,
    Task,
    labels_of,
    split_named,
    type_word,
)
from timonel.data.sources.arrow import text_of
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    SourceOptions,
    UnusableError,
)
from timonel.data.sources.imagefile import image_format, verify_image
from timonel.data.sources.images import ImageFolderSource
from timonel.data.sources.labels import multiple_labels
from timonel.data.sources.pixels import FEATURES, decode_pixels
from timonel.data.sources.recordfiles import (
    Example,
    RecordFile,
    dataset_manifest,
    label_names,
    missing_files,
    record_files,
    splits_of,
)
from timonel.data.statistics import Statistics
from timonel.errors import CorruptError, DataError, SpecError
from timonel.storage.location import Location, distinct_names

_SAMPLE = 20
_SPLIT = "split"
_VALUES = {"image": "encoded images", "split": "names of splits"}
_LABELS = ("label", "image/class/text", "image/class/label", "class", "target")


class RecordImageSource(ImageFolderSource):
    """Images in records of tf.train.Example, in file order.

    A feature ``split``, or else a word in the names of the files, assigns the splits.
    """

    plugin: ClassVar[str] = "tfrecord-images"
    kind: ClassVar[str] = "images"
    precedence: ClassVar[int] = 2

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:  # noqa: ARG003 - by name
        """Tell whether ``location`` has TFRecords with one image each."""
        files = record_files(location)
        manifest = dataset_manifest(location) if location.is_dir() else None
        if manifest is not None:
            return isinstance(manifest.record_schema, ImageSchema)
        return bool(files) and _image_feature(_first_records(files[0])) is not None

    @property
    def is_remote(self) -> bool:
        """False: records are read from a local copy."""
        return False

    def scan(self) -> Scan:
        """Read all records, and remember where they are."""
        files = record_files(self.location)
        if not files:
            raise DataError(f"{self.location} has no TFRecords")
        self._opened = [RecordFile(file) for file in files]
        sample = self._sample_image()
        label = self._label_feature(sample)
        self._names = label_names(self.location, label)
        inferred: Task = "regression" if _is_float(sample, label) else "classification"
        self._task = self.options.task or inferred
        is_dataset = self.location.is_dir() and dataset_manifest(self.location) is not None
        self._keys = KEY_FEATURE if is_dataset else None
        ignored: list[str] = []
        rejected: list[Rejected] = []
        return Scan(
            entries=self._entries(label, rejected, ignored),
            task=self._task,
            ignored=ignored,
            rejected=rejected,
            columns=self._columns(sample, label),
            warnings=[] if self.location.is_file() else missing_files(files),
        )

    def reopen(self) -> None:
        """Open the files that a scan found."""
        self._opened = [RecordFile(file) for file in record_files(self.location)]
        self._sample_image()

    def read(self, entry: Entry) -> Raw:
        """Read a record and verify its image."""
        index, offset, length = entry.ref
        try:
            example = self._opened[index].read(Span(offset, length))
        except CorruptError as error:
            raise UnusableError(entry.key, "the file changed during the conversion") from error
        content = decode_pixels(entry.key, example) if self._is_raw else example[self._image][0]
        facts = verify_image(entry.key, content, self.options.check)
        return Raw({IMAGE_FEATURE: content}, facts)

    def digest(self, entry: Entry) -> str | None:
        """Return the digest of an image."""
        index, offset, length = entry.ref
        try:
            content = self._opened[index].read(Span(offset, length))[self._image][0]
        except CorruptError:
            return None  # reading the record reports the error
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the images."""
        found = super().describe(statistics, files)
        return replace(found, files=len(self._opened))

    def _sample_image(self) -> list[Example]:
        """Find the feature with the image; return the first records."""
        sample = _sample(self._opened[0])
        image = _image_feature(sample)
        if image is None:
            raise DataError(f"the records of {self.location} have no feature with one image each")
        self._image, self._is_raw = image, sample[0].keys() >= FEATURES
        return sample

    def _entries(self, label: str, rejected: list[Rejected], ignored: list[str]) -> Iterator[Entry]:
        labels = set()
        files = [file.location for file in self._opened]
        named = zip(self._opened, distinct_names(files), splits_of(files), strict=True)
        for index, (file, name, split) in enumerate(named):
            modified = file.location.modified()
            for number, (span, example) in enumerate(file.records(), start=1):
                key = f"{name}#{number}"
                if self._keys is not None and not isinstance(example, str):
                    key = _text(example[self._keys][0])
                try:
                    found = self._entry_of(key, example, label, span, split)
                except UnusableError as error:
                    rejected.append(error.rejected)
                    continue
                if found is None:
                    ignored.append(f"{key} (split DISCARD)")
                    continue
                words = str(found.label)
                labels |= {*labels_of(words)} if self._task == "multilabel" else {words}
                ref = [index, span.offset, span.length]
                yield replace(found, ref=ref, modified=modified)
        self._check(labels, ignored)

    def _entry_of(
        self, key: str, example: Example | str, label: str, span: Span, split: Split | None
    ) -> Entry | None:
        if isinstance(example, str):
            raise UnusableError(key, example)
        images, labels = example.get(self._image, []), example.get(label, [])
        if len(images) != 1 or not isinstance(images[0], bytes):
            raise UnusableError(key, f"{len(images)} images in the feature {self._image!r}")
        if len(labels) != 1 and self._task != "multilabel":
            raise UnusableError(
                key,
                f"{len(labels)} labels in the feature {label!r}",
                hint="use --task multilabel if records have several labels",
            )
        word = _text(example[_SPLIT][0]) if self._has_splits and example.get(_SPLIT) else ""
        if word.lower() == "discard":
            return None
        given = split_named(word)
        if given is None and word.lower() not in {"", "unassigned"}:
            raise UnusableError(
                key, f"expected train, validation or test in the feature 'split', got {word!r}"
            )
        group = hashlib.blake2b(images[0], digest_size=16).hexdigest()
        found = [self._label(each) for each in labels]
        of_entry = multiple_labels(found) if self._task == "multilabel" else found[0]
        return Entry(key, of_entry, span.length, None, split_named(word) or split, group)

    @property
    def _has_splits(self) -> bool:
        return self.options.columns.get(_SPLIT) != "drop"

    def _label(self, value: bytes | float) -> str | float:
        if self._task == "regression" and not isinstance(value, bytes):
            return float(value)
        if isinstance(value, int) and 0 <= value < len(self._names):
            return self._names[value]
        return _text(value)

    def _label_feature(self, sample: Sequence[Example]) -> str:
        names = sorted(sample[0])
        label = self.options.label or next((name for name in _LABELS if name in names), None)
        if label is None or label not in names or label == self._image:
            raise SpecError(
                f"the label feature of {self.location} is not known",
                hint=f"name it with --label; the features are {', '.join(names)}",
            )
        return label

    def _columns(self, sample: Sequence[Example], label: str) -> list[ColumnRole]:
        roles = {self._image: "image", label: "label"}
        if self._has_splits:
            roles[_SPLIT] = "split"
        described = FEATURES if self._is_raw else frozenset()
        given = self.options.columns.items()
        drops = [name for name in sample[0] if name not in {self._image, label}]
        wrong = [
            (name, kind)
            for name, kind in given
            if roles.get(name) != kind and not (kind == "drop" and name in drops)
        ]
        if wrong:
            raise SpecError(
                f"feature {wrong[0][0]!r} of {self.location} cannot be {type_word(wrong[0][1])}",
                hint="records of images have an image, its label and a feature 'split'",
            )
        return [
            ColumnRole.model_validate(
                {
                    "name": name,
                    "role": roles.get(name, "drop"),
                    "values": _VALUES.get(roles.get(name, ""), ""),
                    "note": _note(name, roles, described),
                }
            )
            for name in sorted(sample[0])
        ]


def _first_records(location: Location) -> list[Example]:
    """Return the first records without decompressing the whole file."""
    try:
        payloads = itertools.islice(read_stream(location.local), _SAMPLE)
        return [decode_example(payload) for payload in payloads]
    except (CorruptError, OSError):
        return _sample(RecordFile(location))  # skips damaged records


def _sample(file: RecordFile) -> list[Example]:
    found = (example for _, example in file.records() if not isinstance(example, str))
    return list(itertools.islice(found, _SAMPLE))


def _image_feature(sample: Sequence[Example]) -> str | None:
    """Return the only feature that has one image in each record."""
    if not sample:
        return None
    if sample[0].keys() >= FEATURES:
        return "image"
    names = sorted({name for example in sample for name in example})
    found = [name for name in names if _has_images([each.get(name, []) for each in sample])]
    return found[0] if len(found) == 1 else None


def _has_images(values: Sequence[Sequence[object]]) -> bool:
    """Tell whether at least half of the records have one image; others may be damaged."""
    images = (
        len(each) == 1 and isinstance(each[0], bytes) and image_format(each[0]) is not None
        for each in values
    )
    return sum(images) * 2 >= len(values)


def _is_float(sample: Sequence[Example], name: str) -> bool:
    return any(isinstance(value, float) for each in sample for value in each.get(name, []))


def _text(value: bytes | float) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace").strip()
    return text_of(value)


def _note(name: str, roles: Mapping[str, str], described: frozenset[str]) -> str:
    if name in roles:
        return ""
    if name in described:
        return "describes the pixels of the image"
    return "not the image, its label or its split"
