"""Real models of images and rows with the datasets they learnt, converted in real processes."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timonel.data import convert
from timonel.edge import Conversion, convert_version
from timonel.models import ModelRepository, ModelVersion

SIDE = 12


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images: dark ones and bright ones, with noise."""
    place = tmp_path_factory.mktemp("images")
    folder = place / "source"
    generator = np.random.default_rng(0)
    for label, mean in (("dark", 80), ("bright", 170)):
        (folder / label).mkdir(parents=True)
        for number in range(60):
            pixels = np.clip(generator.normal(mean, 60, (SIDE, SIDE, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / label / f"{number}.png")
    convert(folder, place / "dataset", workspace=place)
    return place / "dataset"


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of rows: a number with gaps, a word, and a class that both decide."""
    folder = tmp_path_factory.mktemp("rows")
    chance = random.Random(0)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "colour", "kind"])
        for _ in range(200):
            size, colour = chance.gauss(10, 4), chance.choice(["red", "green", "blue"])
            kind = "large" if size + 3 * (colour == "red") > 11 else "small"
            writer.writerow(["" if chance.random() < 0.1 else f"{size:.3f}", colour, kind])
    convert(folder / "rows.csv", folder / "dataset", label="kind", workspace=folder)
    return folder / "dataset"


@pytest.fixture(scope="session")
def image_version(images: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """A small convolutional network that learnt the images."""
    import keras

    from timonel.data import load
    from timonel.data.preprocess import image_batch
    from timonel.data.preprocessing import ImagePreprocessing
    from timonel.models import export_live

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(load(images, batch_size=16), epochs=5, verbose=0, shuffle=False)
    spec = ImagePreprocessing(channels=3, height=SIDE, width=SIDE)
    folder = tmp_path_factory.mktemp("image-model")
    export_live(
        model, folder, preprocessing=spec.model_dump(), labels=load(images).class_names,
        input_kind="image", label_mode="int", transform=lambda batch: image_batch(spec, batch),
    )  # fmt: skip
    origin = {"dataset": {"uri": str(images)}}
    return ModelRepository(folder / "models").publish("shapes", folder, origin)


@pytest.fixture(scope="session")
def row_version(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """A small dense network that learnt the rows."""
    import keras

    from timonel.data import Dataset, load
    from timonel.data.preprocess import table_batch
    from timonel.data.preprocessing import Normalise, table_preprocessing
    from timonel.models import export_live

    keras.utils.set_random_seed(0)
    schema: Any = Dataset.open(rows).manifest.record_schema
    spec = table_preprocessing(schema)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((spec.width,)), layers.Dense(16, "relu"), layers.Dense(2, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(load(rows, batch_size=16), epochs=20, verbose=0, shuffle=False)
    kinds = {c.column: "float32" if isinstance(c, Normalise) else "string" for c in spec.columns}
    folder = tmp_path_factory.mktemp("row-model")
    export_live(
        model, folder, preprocessing=spec.model_dump(), labels=load(rows).class_names,
        input_kind="table", label_mode="int", columns=kinds,
        transform=lambda columns: table_batch(spec, columns),
    )  # fmt: skip
    origin = {"dataset": {"uri": str(rows)}}
    return ModelRepository(folder / "models").publish("shapes", folder, origin)


@pytest.fixture(scope="session")
def litert(image_version: ModelVersion, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    """The network as a LiteRT model; converting takes two processes."""
    folder = tmp_path_factory.mktemp("litert") / "converted"
    return convert_version(image_version, output=str(folder), c_header=True, page=True)
