"""Contract tests for data sources.

Subclass `SourceContract` in a test module and provide a fixture named ``source``: a source with at
least ten usable records. pytest then runs the contract against it:

    class TestMySource(SourceContract):
        @pytest.fixture
        def source(self, tmp_path):
            return MySource(Location(make_raw_files(tmp_path)))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import TypeAdapter

from timonel.data.examples import decode_example, encode_example
from timonel.data.schema import (
    COLUMN_PREFIX,
    IMAGE_FEATURE,
    KEY_FEATURE,
    LABEL_FEATURE,
    SPLITS,
    ImageSchema,
    Schema,
)
from timonel.data.sources import Description, Entry, RawFiles, Source
from timonel.data.statistics import Collector
from timonel.storage.digests import digest_lines


class SourceContract:
    """Contract tests for properties that conversions rely on."""

    @pytest.fixture
    def source(self) -> Source:
        raise NotImplementedError("give a fixture named 'source'")

    def test_it_recognises_its_own_place(self, source: Source) -> None:
        assert type(source).recognises(source.location, source.options)
        assert not type(source).recognises(source.location / "nowhere", source.options)

    def test_keys_are_unique_and_a_scan_is_repeatable(self, source: Source) -> None:
        entries = list(source.scan().entries)
        keys = [entry.key for entry in entries]
        assert len(keys) >= 10
        assert len(set(keys)) == len(keys)
        assert list(self.again(source).scan().entries) == entries

    def test_labels_fit_the_task(self, source: Source) -> None:
        scan = source.scan()
        entries = list(scan.entries)
        expected = float if scan.task == "regression" else str
        assert all(isinstance(entry.label, expected) for entry in entries)
        assert len({entry.label for entry in entries}) >= 2

    def test_references_survive_json(self, source: Source) -> None:
        for entry in source.scan().entries:
            assert json.loads(json.dumps(entry.ref)) == entry.ref

    def test_another_object_reads_the_records(self, source: Source) -> None:
        entries = list(source.scan().entries)
        other = self.again(source)
        other.reopen()
        for entry in entries:
            # NaN differs from itself.
            assert repr(other.read(entry)) == repr(source.read(entry))

    def test_sizes_are_positive(self, source: Source) -> None:
        assert all(entry.size > 0 for entry in source.scan().entries)

    def test_features_fit_into_a_record_beside_key_and_label(self, source: Source) -> None:
        for entry in source.scan().entries:
            features = source.read(entry).features
            assert not {KEY_FEATURE, LABEL_FEATURE} & set(features)
            assert set(decode_example(encode_example(features))) == set(features)

    def test_all_records_have_the_features_of_the_schema(self, source: Source) -> None:
        entries = list(source.scan().entries)
        schema = self.describe(source, entries).schema
        expected = {IMAGE_FEATURE}
        if not isinstance(schema, ImageSchema):
            expected = {column.feature for column in schema.columns}
            assert all(name.startswith(COLUMN_PREFIX) for name in expected)
        for entry in entries:
            assert set(source.read(entry).features) == expected

    def test_reading_from_several_threads_gives_the_same(self, source: Source) -> None:
        entries = list(source.scan().entries)
        alone = [encode_example(source.read(entry).features) for entry in entries]
        with ThreadPoolExecutor(4) as pool:
            together = pool.map(lambda entry: encode_example(source.read(entry).features), entries)
            assert list(together) == alone

    def test_the_description_is_the_same_every_time_and_fits_into_json(
        self, source: Source
    ) -> None:
        first = self.describe(source, list(source.scan().entries))
        other = self.again(source)
        assert self.describe(other, list(other.scan().entries)) == first
        assert first.digest.startswith("sha256:")
        assert first.files > 0
        assert first.bytes > 0
        adapter: TypeAdapter[Schema] = TypeAdapter(Schema)
        assert adapter.validate_json(adapter.dump_json(first.schema)) == first.schema

    def again(self, source: Source) -> Source:
        """Return a second source for the same location."""
        return type(source)(source.location, source.options)

    def describe(self, source: Source, entries: Sequence[Entry]) -> Description:
        """Read all entries, with the first half as the training split."""
        half, total = len(entries) // 2, 0
        collectors = {split: Collector() for split in SPLITS}
        for index, entry in enumerate(entries):
            raw = source.read(entry)
            total += raw.image.bytes if raw.image else 0
            collectors["train" if index < half else "test"].add(
                entry.label, raw.features, raw.image, raw.facts
            )
        statistics = {split: collector.statistics() for split, collector in collectors.items()}
        digest = digest_lines(sorted(entry.key for entry in entries))
        return source.describe(statistics, RawFiles(digest, len(entries), total))
