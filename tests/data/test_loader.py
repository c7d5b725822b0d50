"""Everything of the data package that needs TensorFlow, in one file: it is imported once."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data import load, load_registry, loader, random_access
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.examples import decode_example, encode_example
from timonel.data.load_registry import InputShard
from timonel.data.preprocess import image_batch, table_batch
from timonel.data.preprocessing import (
    ImagePreprocessing,
    Normalise,
    OneHot,
    TablePreprocessing,
    load_options,
    parse_preprocessing,
)
from timonel.data.random_access import feature_spec
from timonel.data.records import read_records
from timonel.data.split_records import SplitRecords
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace

tf = pytest.importorskip("tensorflow")

ON_DISK = 0
IN_MEMORY = "1GB"


@pytest.fixture(autouse=True)
def new_session() -> Iterator[None]:
    load_registry.reset()
    yield
    load_registry.reset()


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """101 rows whose only column is the row's number; made once, as every test only reads it."""
    folder = tmp_path_factory.mktemp("numbered")
    lines = [f"{i},{'yes' if i % 2 else 'no'}" for i in range(101)]
    (folder / "rows.csv").write_text("\n".join(["number,good", *lines]) + "\n")
    return convert(
        folder / "rows.csv",
        folder / "set",
        label="good",
        splits=(0.6, 0.2, 0.2),
        shards=3,
        workspace=folder / "workspace",
    )


@pytest.fixture
def images(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> Dataset:
    return convert(make_images(count=20), tmp_path / "set", workspace=workspace)


def numbers(dataset: Dataset, batches: Any) -> list[list[int]]:
    """Return the rows' numbers of each batch, from their z-scores."""
    column: Any = dataset.manifest.record_schema.columns[0]  # type: ignore[union-attr] # a table
    return [[round(float(v) * column.std + column.mean) for v in x[:, 0]] for x, _ in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


class TestFormats:
    """Our records are TensorFlow's, and the other way round."""

    def test_examples_are_equal_to_the_byte(self) -> None:
        features = {"b": [b"x", b""], "i": [-1, 2**40], "f": [0.5, -2.0], "none": []}
        theirs = tf.train.Example()
        theirs.features.feature["b"].bytes_list.value.extend(features["b"])
        theirs.features.feature["i"].int64_list.value.extend(features["i"])
        theirs.features.feature["f"].float_list.value.extend(features["f"])
        theirs.features.feature["none"].SetInParent()
        assert encode_example(features) == theirs.SerializeToString(deterministic=True)  # type: ignore[arg-type] # lists of one type
        assert decode_example(theirs.SerializeToString()) == features

    def test_tensorflow_reads_what_we_write(self, images: Dataset) -> None:
        files = [str(path) for path in images.shards("train")]
        payloads = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
        assert payloads == list(images.payloads("train"))
        spec = {**feature_spec(images), "key": tf.io.FixedLenFeature((), tf.string)}
        parsed = tf.io.parse_example(tf.constant(payloads), spec)
        ours = list(images.examples("train"))
        assert [key.decode() for key in parsed["key"].numpy()] == [e["key"] for e in ours]
        assert parsed["label"].numpy().tolist() == [e["label"] for e in ours]
        assert parsed["image"].numpy().tolist() == [e["image"] for e in ours]

    def test_we_read_what_tensorflow_writes(self, tmp_path: Path) -> None:
        payloads = [b"", b"one", b"x" * 5000]
        with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
            for payload in payloads:
                writer.write(payload)
        assert list(read_records(tmp_path / "theirs")) == payloads


class TestImages:
    def test_nothing_holds_up_the_end_of_an_epoch(self, images: Dataset) -> None:
        assert load(images.uri).options().autotune.enabled is False

    def test_labels_are_named_in_their_order(self, images: Dataset) -> None:
        assert load(images.uri).class_names == list(images.labels)

    def test_pixels_and_labels(self, images: Dataset) -> None:
        (batch,) = load(images.uri, split="test", batch_size=8)
        x, y = batch
        examples = list(images.examples("test"))
        assert (x.shape, x.dtype) == ((len(examples), 6, 5, 3), tf.float32)
        assert (y.shape, y.dtype) == ((len(examples),), tf.int64)
        assert y.numpy().tolist() == [example["label"] for example in examples]
        for pixels, example in zip(x.numpy(), examples, strict=True):
            expected = tf.io.decode_png(example["image"]).numpy() / 255
            np.testing.assert_allclose(pixels, expected, atol=1e-6)

    def test_they_are_resized_scaled_and_made_grey(self, images: Dataset) -> None:
        ((x, _),) = load(
            images.uri, split="test", image_size=(3, 4), channels=1, scale=1, offset=-128
        )
        content = next(images.examples("test"))["image"]
        grey = tf.io.decode_image(content, channels=1, expand_animations=False)
        expected = tf.image.resize(grey, (3, 4)) - 128
        np.testing.assert_allclose(x[0], expected, atol=1e-4)

    def test_grey_images_have_one_channel(
        self, make_images: MakeImages, tmp_path: Path, workspace: Workspace
    ) -> None:
        dataset = convert(make_images(mode="L"), tmp_path / "grey", workspace=workspace)
        assert load(dataset.uri).element_spec[0].shape == (None, 6, 5, 1)

    def test_images_of_several_sizes_need_one(
        self, make_images: MakeImages, tmp_path: Path, workspace: Workspace
    ) -> None:
        make_images(["cat"], size=(10, 20), ending="jpg")
        dataset = convert(make_images(["dog"]), tmp_path / "set", workspace=workspace)
        with pytest.raises(InputError, match=r"6x5 to 10x20\): use image_size=\(6, 5\)"):
            load(dataset.uri)
        assert load(dataset.uri, image_size=(7, 7)).element_spec[0].shape == (None, 7, 7, 3)

    def test_a_size_may_follow_from_the_images(
        self, make_images: MakeImages, tmp_path: Path, workspace: Workspace
    ) -> None:
        make_images(["cat"], size=(400, 200))
        tall = convert(
            make_images(["dog"], size=(400, 200)), tmp_path / "tall", workspace=workspace
        )
        assert load(tall.uri, image_size="auto").element_spec[0].shape == (None, 128, 64, 3)
        mixed = make_images(["cat"], size=(40, 50), name="mixed")
        make_images(["dog"], size=(30, 20), name="mixed")
        several = convert(mixed, tmp_path / "several", workspace=workspace)
        assert load(several.uri, image_size="auto").element_spec[0].shape == (None, 20, 20, 3)

    def test_all_formats_are_decoded(
        self, make_images: MakeImages, tmp_path: Path, workspace: Workspace
    ) -> None:
        for label, ending in zip("abcde", ("png", "jpg", "gif", "bmp", "webp"), strict=True):
            make_images([label], ending=ending)
        dataset = convert(tmp_path / "raw", tmp_path / "set", workspace=workspace)
        shapes = {tuple(x.shape[1:]) for x, _ in load(dataset.uri)}
        assert shapes == {(6, 5, 3)}
        with pytest.raises(
            SpecError, match="not supported for images in bmp, gif, jpeg, png, webp: use 3"
        ):
            load(dataset.uri, channels=1)

    @pytest.mark.slow
    @pytest.mark.parametrize("resize", [True, False])
    def test_the_exported_graph_does_the_same_as_training(
        self, images: Dataset, tmp_path: Path, resize: bool
    ) -> None:
        size = (4, 4) if resize else None
        x = np.concatenate(
            [x for x, _ in load(images.uri, split="train", shuffle=False, image_size=size)]
        )
        spec = parse_preprocessing(load_registry.loads[0].preprocessing.model_dump_json())
        assert isinstance(spec, ImagePreprocessing)
        module = tf.Module()
        module.serve = tf.function(
            lambda contents: image_batch(spec, contents),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        tf.saved_model.save(module, str(tmp_path / "saved"))
        contents = [example["image"] for example in images.examples("train")]
        served = tf.saved_model.load(str(tmp_path / "saved")).serve(tf.constant(contents))
        np.testing.assert_array_equal(served, x)


class TestShrinkOnLoad:
    """JPEGs are decoded at the smallest scale that covers the target."""

    def pixels(self, content: bytes, size: tuple[int, int], **options: Any) -> Any:
        spec = ImagePreprocessing(
            channels=3, height=size[0], width=size[1], shrink_on_load=True, scale=1, **options
        )
        return image_batch(spec, tf.constant([content]))[0]

    @pytest.mark.parametrize(
        ("size", "ratio"), [((11, 10), 8), ((12, 10), 4), ((41, 1), 2), ((42, 1), 1), ((90, 80), 1)]
    )
    def test_the_scale_follows_from_both_sizes(
        self, make_images: MakeImages, size: tuple[int, int], ratio: int
    ) -> None:
        folder = make_images(["cat"], 1, size=(82, 80), ending="jpg")
        content = (folder / "cat" / "000.jpg").read_bytes()
        decoded = tf.io.decode_jpeg(content, channels=3, ratio=ratio)
        expected = tf.image.resize(decoded, size)
        np.testing.assert_array_equal(self.pixels(content, size), expected)

    @pytest.mark.parametrize(("ending", "method"), [("png", "bilinear"), ("jpg", "nearest")])
    def test_other_formats_and_nearest_pixels_are_not_shrunk(
        self, make_images: MakeImages, ending: str, method: Any
    ) -> None:
        folder = make_images(["cat"], 1, size=(82, 80), ending=ending)
        content = (folder / "cat" / f"000.{ending}").read_bytes()
        decoded = tf.io.decode_image(content, channels=3, expand_animations=False)
        expected = tf.cast(tf.image.resize(decoded, (9, 9), method=method), tf.float32)
        found = self.pixels(content, (9, 9), method=method)
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("shrink_on_load", [True, False])
    def test_the_exported_graph_does_the_same(
        self, make_images: MakeImages, tmp_path: Path, workspace: Workspace, shrink_on_load: bool
    ) -> None:
        folder = make_images(size=(82, 80), ending="jpg")
        dataset = convert(folder, tmp_path / "set", splits=[1], workspace=workspace)
        options = {"image_size": (16, 16), "shrink_on_load": shrink_on_load, "shuffle": False}
        ((x, _),) = load(dataset.uri, **options)
        spec = load_registry.loads[0].preprocessing
        assert isinstance(spec, ImagePreprocessing)
        serve = tf.function(
            lambda contents: image_batch(spec, contents),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        contents = [example["image"] for example in dataset.examples("train")]
        np.testing.assert_array_equal(serve(tf.constant(contents)), x)
        assert load_options(spec) == {
            "channels": 3,
            "method": "bilinear",
            "scale": 1 / 255,
            "offset": 0.0,
            "image_size": (16, 16),
            "shrink_on_load": shrink_on_load,
        }


class TestTables:
    SPEC = TablePreprocessing(
        columns=(
            Normalise(column="a", mean=2.0, std=4.0),
            OneHot(column="b", vocabulary=("blue", "red")),
        )
    )

    def test_numbers_are_normalised_and_words_one_hot(self) -> None:
        x = table_batch(
            self.SPEC,
            {
                "b": tf.constant([" red ", "green", "", "blue"]),
                "a": tf.constant([2.0, 6.0, float("nan"), -2.0]),
            },
        )
        assert x.numpy().tolist() == [
            [0, 0, 0, 1],
            [1, 1, 0, 0],
            [0, 1, 0, 0],
            [-1, 0, 1, 0],
        ]

    def test_columns_may_stay_apart(self) -> None:
        spec = self.SPEC.model_copy(update={"features": "columns"})
        x = table_batch(spec, {"a": tf.constant([2.0]), "b": tf.constant(["red"])})
        assert {name: values.numpy().tolist() for name, values in x.items()} == {
            "a": [[0]],
            "b": [[0, 0, 1]],
        }

    @pytest.mark.parametrize("memory", [IN_MEMORY, ON_DISK])
    def test_rows_of_a_dataset(
        self, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace, memory: str
    ) -> None:
        dataset = convert(make_csv(), tmp_path / "set", label="good", workspace=workspace)
        x, y = next(iter(load(dataset.uri, batch_size=40, memory=memory)))
        count = dataset.count("train")
        assert x.shape == (count, 1 + 3)
        assert y.numpy().sum() == dataset.manifest.label_counts["train"]["yes"]
        np.testing.assert_allclose(x[:, 0].numpy().mean(), 0, atol=1e-6)
        np.testing.assert_allclose(x[:, 0].numpy().std(), 1, atol=1e-5)
        np.testing.assert_array_equal(x[:, 1:].numpy().sum(axis=1), np.ones(count))
        spec = load(dataset.uri, features="columns").element_spec[0]
        assert {name: tuple(s.shape) for name, s in spec.items()} == {
            "size": (None, 1),
            "colour": (None, 3),
        }

    def test_columns_named_like_our_own(
        self, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
    ) -> None:
        rows = [f"{i},{i % 7},{'p' if i % 2 else 'q'}" for i in [*range(1, 20), 0]]
        path = make_csv("label,key,y", *rows)
        dataset = convert(path, tmp_path / "set", label="y", splits=[1], workspace=workspace)
        x, y = next(iter(load(dataset.uri, shuffle=False)))
        for row, label, example in zip(x.numpy(), y, dataset.examples("train"), strict=True):
            column: Any = dataset.manifest.record_schema.columns[0]  # type: ignore[union-attr] # a table
            assert round(row[0] * column.std + column.mean) == example["column/label"]
            assert dataset.labels[int(label)] == ("p" if example["column/label"] % 2 else "q")

    def test_label_modes(
        self, numbered: Dataset, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
    ) -> None:
        labels = [e["label"] for e in numbered.examples("test")]
        for mode, expected in (
            ("int", labels),
            ("binary", [[label] for label in labels]),
            ("onehot", np.eye(2)[labels].tolist()),
        ):
            batches = load(numbered.uri, split="test", label_mode=mode)
            assert np.concatenate([y for _, y in batches]).tolist() == expected
        with pytest.raises(
            SpecError, match=r"'regression' does not support .* use auto, int, onehot, binary"
        ):
            load(numbered.uri, label_mode="regression")
        path = make_csv("a,y", *(f"{i},{i}.5" for i in range(30)))
        target = convert(path, tmp_path / "set", label="y", workspace=workspace)
        assert load(target.uri).element_spec[1] == tf.TensorSpec((None, 1), tf.float32)
        with pytest.raises(SpecError, match="use auto, regression"):
            load(target.uri, label_mode="int")


class TestOrder:
    @pytest.mark.parametrize("memory", [IN_MEMORY, ON_DISK])
    def test_evaluation_is_in_the_order_of_the_keys(self, numbered: Dataset, memory: str) -> None:
        batches = load(numbered.uri, split="test", batch_size=8, memory=memory)
        expected = [int(e["column/number"]) for e in numbered.examples("test")]
        for _ in range(2):
            assert flat(numbers(numbered, batches)) == expected

    def test_epochs_differ_and_come_again_with_the_seed(self, numbered: Dataset) -> None:
        one, same = (load(numbered.uri, batch_size=16, seed=5) for _ in range(2))
        other = load(numbered.uri, batch_size=16, seed=6)
        first, second = (flat(numbers(numbered, one)) for _ in range(2))
        assert sorted(first) == sorted(second)
        assert first != second
        assert [flat(numbers(numbered, same)) for _ in range(2)] == [first, second]
        assert flat(numbers(numbered, other)) != first

    def test_both_stores_give_the_same(self, numbered: Dataset) -> None:
        kept, read = (load(numbered.uri, memory=memory) for memory in (IN_MEMORY, ON_DISK))
        assert numbers(numbered, kept) == numbers(numbered, read)

    def test_the_number_of_steps_is_known(self, numbered: Dataset) -> None:
        dataset = load(numbered.uri, batch_size=16)
        assert int(dataset.cardinality()) == 4 == len(list(dataset))
        assert int(dataset.map(lambda x, y: (x * 2, y)).prefetch(1).cardinality()) == 4

    def test_going_on_at_a_step(self, numbered: Dataset) -> None:
        whole = load(numbered.uri, batch_size=16)
        epochs = [numbers(numbered, whole) for _ in range(3)]
        resumed = load(numbered.uri, batch_size=16)
        derived = resumed.map(lambda x, y: (x, y)).prefetch(2)
        stream = load_registry.stream_of(resumed)
        assert stream is not None
        stream.seek(1, 3)
        assert numbers(numbered, derived) == epochs[1][3:]
        assert stream.epoch == 2
        assert numbers(numbered, derived) == epochs[2]

    def test_the_end_of_an_epoch_is_a_position(self, numbered: Dataset) -> None:
        batches = load(numbered, batch_size=16, seed=3)
        expected = [numbers(numbered, batches) for _ in range(2)]
        batches.seek(0, len(batches))
        assert [numbers(numbered, batches) for _ in range(2)] == [[], expected[1]]

    def test_repeat_goes_through_the_epochs(self, numbered: Dataset) -> None:
        one, repeated = load(numbered.uri), load(numbered.uri).repeat(2)
        assert numbers(numbered, repeated) == numbers(numbered, one) + numbers(numbered, one)


class TestLastBatch:
    """All batches have one shape, so that compilers need one program."""

    def test_padding_has_no_weight(self, numbered: Dataset) -> None:
        whole = load(numbered.uri, split="test", batch_size=8)
        padded = load(numbered.uri, split="test", batch_size=8, last_batch="pad")
        assert [tuple(spec.shape) for spec in padded.element_spec] == [(8, 1), (8,), (8,)]
        for (x, y), (u, v, weights) in zip(whole, padded, strict=True):
            assert weights.numpy().tolist() == [1] * len(y) + [0] * (8 - len(y))
            np.testing.assert_array_equal(u[: len(y)], x)
            np.testing.assert_array_equal(v[: len(y)], y)

    def test_dropping_the_last_batch(self, numbered: Dataset) -> None:
        dropped = load(numbered.uri, batch_size=16, last_batch="drop")
        assert [tuple(spec.shape) for spec in dropped.element_spec] == [(16, 1), (16,)]
        assert len(list(dropped)) == 3
        with pytest.raises(SpecError, match="last_batch= as 'short' or 'pad' or 'drop'"):
            load(numbered.uri, last_batch="keep")  # type: ignore[arg-type] # as a script may

    def test_metrics_of_a_padded_evaluation(self, numbered: Dataset) -> None:
        """Weighted metrics are right, others count the padding, as the documentation says."""
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
        model.compile(
            loss=keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight"),
            weighted_metrics=["accuracy"],
        )
        options = {"split": "test", "batch_size": 16, "label_mode": "binary"}
        short, padded = (
            model.evaluate(load(numbered.uri, last_batch=last, **options), verbose=0)
            for last in ("short", "pad")
        )
        assert padded[1] == pytest.approx(short[1])

    def test_weights_balance_the_classes(
        self, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
    ) -> None:
        path = make_csv("a,y", *(f"{i},{'rare' if i < 10 else 'usual'}" for i in range(40)))
        dataset = convert(path, tmp_path / "set", label="y", splits=[1], workspace=workspace)
        expected = compute_class_weight(
            "balanced", classes=np.arange(2), y=[e["label"] for e in dataset.examples("train")]
        )
        found = load(dataset.uri).class_weight
        assert found == pytest.approx(dict(enumerate(expected)))
        regression = convert(make_csv("a,y", *(f"{i},{i}.5" for i in range(30))), tmp_path / "r",
                             label="y", workspace=workspace)  # fmt: skip
        assert load(regression.uri).class_weight is None


class TestCache:
    def batches(self, dataset: Dataset, **options: Any) -> Any:
        return load(dataset.uri, batch_size=6, image_size=(4, 4), **options)

    def epoch(self, batches: Any) -> list[Any]:
        return [[part.numpy().tolist() for part in batch] for batch in batches]

    @pytest.fixture(params=["memory", "disk"])
    def cache(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        return "memory" if request.param == "memory" else tmp_path / "cache"

    def test_the_batches_are_the_same_and_not_read_again(self, images: Dataset, cache: Any) -> None:
        plain = self.batches(images)
        epochs = [self.epoch(plain) for _ in range(3)]
        with_cache = self.batches(images, cache=cache)
        assert self.epoch(with_cache) == epochs[0]
        for path in images.shards("train"):
            path.write_bytes(b"")
        assert self.epoch(with_cache) == epochs[1]
        with_cache.seek(2, 1)
        assert self.epoch(with_cache) == epochs[2][1:]

    @pytest.mark.slow
    def test_workers_and_later_runs_share_a_folder(self, images: Dataset, tmp_path: Path) -> None:
        for index in range(2):
            load_registry.configure(InputShard(index, 2))
            list(self.batches(images, cache=tmp_path / "cache", shuffle=False))
        load_registry.reset()
        expected = self.epoch(self.batches(images))
        for path in images.shards("train"):
            path.write_bytes(b"")
        assert self.epoch(self.batches(images, cache=tmp_path / "cache")) == expected

    @pytest.mark.slow
    def test_rows_of_other_options_are_not_used(self, images: Dataset, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        others = [{"scale": 1.0}, {"label_mode": "onehot"}, {"channels": 1}, {"split": "test"}]
        list(self.batches(images, cache=cache))
        for count, options in enumerate(others, start=2):
            plain, with_cache = (self.batches(images, cache=c, **options) for c in (None, cache))
            for _ in range(2):
                assert self.epoch(with_cache) == self.epoch(plain)
            assert len(list(cache.iterdir())) == count

    def test_a_damaged_cache_changes_nothing(self, images: Dataset, tmp_path: Path) -> None:
        expected = self.batches(images)
        with_cache = self.batches(images, cache=tmp_path / "cache")
        assert self.epoch(with_cache) == self.epoch(expected)
        (path,) = (tmp_path / "cache").iterdir()
        content = bytearray(path.read_bytes())
        for place in range(100, len(content), 500):
            content[place] ^= 1
        path.write_bytes(content[: len(content) * 3 // 4])
        assert self.epoch(with_cache) == self.epoch(expected)
        assert self.epoch(with_cache) == self.epoch(expected)

    def test_padding_and_columns(self, numbered: Dataset, tmp_path: Path) -> None:
        options = {"last_batch": "pad", "features": "columns", "split": "test", "batch_size": 8}
        expected = [tf.nest.map_structure(np.array, b) for b in load(numbered.uri, **options)]
        cached = load(numbered.uri, cache=tmp_path / "cache", **options)
        for _ in range(2):
            for batch, other in zip(cached, expected, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, batch, other)

    def test_a_bucket_is_no_place_for_a_cache(self, images: Dataset) -> None:
        with pytest.raises(InputError, match="cache= as a local folder, got s3://bucket/cache"):
            self.batches(images, cache="s3://bucket/cache")

    def test_too_little_memory(self, images: Dataset) -> None:
        with pytest.raises(InputError, match=r"the cache needs .* more than the limit of 2\.0 kB"):
            self.batches(images, cache="memory", memory="2KB")


class TestWorkers:
    def of_all(self, dataset: Dataset, count: int, **options: Any) -> list[list[list[int]]]:
        parts = []
        for index in range(count):
            load_registry.configure(InputShard(index, count))
            parts.append(numbers(dataset, load(dataset.uri, **options)))
        return parts

    @pytest.mark.parametrize("memory", [IN_MEMORY, ON_DISK])
    @pytest.mark.parametrize("count", [2, 3])
    def test_evaluation_covers_the_split_exactly(
        self, numbered: Dataset, count: int, memory: str
    ) -> None:
        parts = self.of_all(numbered, count, split="test", batch_size=6, memory=memory)
        expected = sorted(int(e["column/number"]) for e in numbered.examples("test"))
        assert sorted(flat([flat(part) for part in parts])) == expected
        assert len({len(part) for part in parts}) == 1
        assert all(rows for part in parts for rows in part)

    @pytest.mark.parametrize("count", [2, 3])
    def test_training_shares_the_batches_of_one_worker(self, numbered: Dataset, count: int) -> None:
        (alone,) = self.of_all(numbered, 1, batch_size=12)
        parts = self.of_all(numbered, count, batch_size=12)
        steps = numbered.count("train") // 12
        assert all(len(part) == steps for part in parts)
        for step in range(steps):
            assert flat([part[step] for part in parts]) == alone[step]

    def test_images_are_shared_as_well(self, images: Dataset) -> None:
        found = []
        for index in range(3):
            load_registry.configure(InputShard(index, 3))
            batches = list(load(images.uri, split="train", shuffle=False, batch_size=6))
            assert all(0 < x.shape[0] == y.shape[0] for x, y in batches)
            found += [image for x, _ in batches for image in x.numpy()]
        contents = [example["image"] for example in images.examples("train")]
        expected = [tf.io.decode_png(content).numpy() / 255 for content in contents]
        total = np.sort([image.sum() for image in found])
        np.testing.assert_allclose(total, np.sort([image.sum() for image in expected]), rtol=1e-5)

    def test_being_sharded_is_known_of_whatever_is_made_of_it(self, numbered: Dataset) -> None:
        assert not load_registry.is_sharded(load(numbered.uri))
        load_registry.configure(InputShard(0, 2))
        sharded = load(numbered.uri)
        assert load_registry.is_sharded(sharded)
        assert load_registry.is_sharded(
            sharded.map(lambda x, y: (x, y)).cache().prefetch(1).repeat()
        )
        assert not load_registry.is_sharded(tf.data.Dataset.range(3))

    def test_a_batch_that_workers_cannot_share(self, numbered: Dataset) -> None:
        load_registry.configure(InputShard(0, 3))
        with pytest.raises(InputError, match="32 cannot be divided among 3 replicas"):
            load(numbered.uri)

    def test_fewer_records_than_workers(self, numbered: Dataset) -> None:
        load_registry.configure(InputShard(0, 50))
        with pytest.raises(InputError, match="22 records are too few for 50 replicas: use fewer"):
            load(numbered.uri, split="test", batch_size=100)

    def test_replicas_of_one_worker_get_rows_each(self, numbered: Dataset) -> None:
        load_registry.configure(InputShard(0, 1, replicas=4))
        (parts,) = [numbers(numbered, load(numbered.uri, split="test", batch_size=8))]
        assert sorted(flat(parts)) == sorted(
            int(e["column/number"]) for e in numbered.examples("test")
        )
        assert all(len(rows) >= 4 for rows in parts)


class TestSession:
    def test_every_load_is_recorded(self, numbered: Dataset) -> None:
        seen: list[load_registry.LoadRecord] = []
        load_registry.on_load.append(seen.append)
        sets = [load(numbered.uri, split=s, batch_size=10) for s in ("train", "validation", "test")]
        assert seen == load_registry.loads
        assert [record.split for record in seen] == ["train", "validation", "test"]
        first = seen[0]
        assert (first.uri, first.digest) == (numbered.uri, numbered.digest)
        assert (first.batch_size, first.records, first.steps) == (10, 58, 6)
        assert (first.labels, first.label_mode, first.task) == (
            ("no", "yes"),
            "int",
            "classification",
        )
        assert (first.shuffle, seen[2].shuffle) == (True, False)
        assert isinstance(first.preprocessing, TablePreprocessing)
        assert load_registry.stream_of(sets[1]) is load_registry.streams[1]
        assert load_registry.stream_of(sets[1].prefetch(1)) is None

    def test_the_path_comes_from_the_environment(
        self, numbered: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(NotFoundError, match="variable TIMONEL_DATA is not set: call load"):
            load()
        monkeypatch.setenv("TIMONEL_DATA", numbered.uri)
        monkeypatch.setenv("TIMONEL_DATA_HOLD_OUT", numbered.uri)
        load()
        load(name="hold_out")
        assert [record.name for record in load_registry.loads] == [None, "hold_out"]
        with pytest.raises(NotFoundError, match=r"DATA_OTHER is not set.* --data other=URI"):
            load(name="other")

    def test_the_only_one_that_has_a_name_needs_none(
        self, numbered: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIMONEL_DATA_DIGITS", numbered.uri)
        load()
        assert load_registry.loads[-1].uri == numbered.uri
        monkeypatch.setenv("TIMONEL_DATA_OTHERS", numbered.uri)
        with pytest.raises(
            NotFoundError,
            match=r"the job has 2 datasets.*load\(name='digits'\) or load\(name='others'\)",
        ):
            load()


class TestExit:
    """Threads of TensorFlow that wait for the GIL when Python exits would never return."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
        calls: list[int] = []
        payload = SplitRecords.payload

        def counted(records: SplitRecords, index: int) -> bytes:
            calls.append(index)
            return payload(records, index)

        monkeypatch.setattr(SplitRecords, "payload", counted)
        yield calls
        random_access._calls.refused = False

    def test_prefetching_has_ended(self, images: Dataset, calls: list[int]) -> None:
        batches = load(images.uri, memory=ON_DISK, batch_size=1).repeat()
        iterator = iter(batches.prefetch(100))
        next(iterator)
        random_access._drain()
        count = len(calls)
        assert count > 100
        random_access._drain()
        assert len(calls) == count
        assert not random_access._calls.refused

    def test_endless_prefetching_is_refused(
        self, images: Dataset, calls: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(random_access, "_DRAIN_S", 0.3)
        batches = load(images.uri, memory=ON_DISK, batch_size=1).repeat()
        iterator = iter(batches.prefetch(10**6))
        next(iterator)
        random_access._drain()
        assert random_access._calls.refused
        with pytest.raises(tf.errors.OpError, match="the interpreter exits"):
            list(iterator)


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("OTHER", "1", [(-3, 64 * 2**20), (-1, 64 * 2**20)]),
        ("MALLOC_TRIM_THRESHOLD_", "1", []),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1", []),
    ],
)
def test_memory_of_batches_is_kept_unless_the_environment_has_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, limits: list[tuple[int, int]]
) -> None:
    called: list[tuple[int, int]] = []
    mallopt = SimpleNamespace(mallopt=lambda *limit: called.append(limit))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: mallopt)
    monkeypatch.setenv(name, value)
    loader._keep_memory()
    assert called == limits


class TestBadInput:
    def test_no_dataset(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"no dataset at .*: it has no manifest"):
            load(tmp_path)

    def test_a_split_that_is_none_or_empty(
        self, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
    ) -> None:
        path = make_csv()
        dataset = convert(path, tmp_path / "s", label="good", splits=[1], workspace=workspace)
        with pytest.raises(SpecError, match="got 'dev'"):
            load(dataset.uri, split="dev")
        with pytest.raises(InputError, match=r"the test split of .* is empty"):
            load(dataset.uri, split="test")

    @pytest.mark.parametrize("size", [(0, 4), (4, -1), (4, 70_000)])
    def test_an_image_size_that_is_none(self, images: Dataset, size: tuple[int, int]) -> None:
        with pytest.raises(SpecError, match="image_size= as"):
            load(images.uri, image_size=size)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"image_size": 224}, r"got 224: use \(224, 224\)"),
            ({"bach_size": 2}, r"no argument 'bach_size': did you mean 'batch_size'\?"),
            ({"memory": "lots"}, "memory=: expected a size such as"),
            ({"features": "columns"}, "features='columns' is for tables"),
            ({"cache": ""}, "is empty"),
        ],
    )
    def test_other_arguments(self, images: Dataset, given: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            load(images, **given)

    def test_a_size_for_no_images(self, numbered: Dataset) -> None:
        with pytest.raises(SpecError, match="image_size= is for images"):
            load(numbered, image_size="auto")

    @pytest.mark.parametrize(("epoch", "step"), [(-1, 0), (0, -1), (0, 5)])
    def test_a_position_that_is_none(self, numbered: Dataset, epoch: int, step: int) -> None:
        batches = load(numbered, split="train", batch_size=16)
        with pytest.raises(InputError, match=f"step {step} of epoch {epoch}: an epoch has 4 steps"):
            batches.seek(epoch, step)

    def test_a_batch_size_of_nothing(self, numbered: Dataset) -> None:
        with pytest.raises(InputError, match="must be positive, got 0"):
            load(numbered.uri, batch_size=0)

    def test_a_damaged_record_in_memory(self, images: Dataset) -> None:
        self.damage(images)
        with pytest.raises(CorruptError, match=r"train-00000-of-00001\.tfrecord.* at byte 0"):
            load(images.uri, memory=IN_MEMORY)

    def test_a_damaged_record_on_disk(self, images: Dataset) -> None:
        self.damage(images)
        batches = load(images.uri, memory=ON_DISK)
        with pytest.raises(tf.errors.OpError, match=r"train-00000-of-00001\.tfrecord.* at byte 0"):
            list(batches)
        expected = f"{images.shards('train')[0]} has a payload"
        assert load_registry.faults
        assert all(fault.message.startswith(expected) for fault in load_registry.faults)

    def damage(self, dataset: Dataset) -> None:
        shard = dataset.shards("train")[0]
        content = bytearray(shard.read_bytes())
        (length,) = struct.unpack_from("<Q", content)
        content[12 + length // 2] ^= 1
        shard.write_bytes(content)
