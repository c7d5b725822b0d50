"""The models of ``edge.py`` on a converted dataset: cnn, deep or mobilenet."""

import argparse

import keras

from timonel.data import load

layers = keras.layers
parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["cnn", "deep", "mobilenet"], required=True)
parser.add_argument("--side", type=int, required=True)
parser.add_argument("--epochs", type=int, required=True)
args = parser.parse_args()
size = (args.side, args.side)
train, held_out = (load(split=split, image_size=size) for split in ("train", "validation"))
shape, labels = train.element_spec[0].shape[1:], len(train.class_names)


def convolutions(*filters: int) -> list:
    found = []
    for count in filters:
        found += [layers.Conv2D(count, 3, activation="relu"), layers.MaxPooling2D()]
    return found


def mobilenet() -> keras.Model:
    base = keras.applications.MobileNetV2(
        input_shape=shape, include_top=False, weights=None, alpha=0.35
    )
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9  # a few hundred steps are too few for 0.999
    inputs = keras.Input(shape)
    features = base(layers.Rescaling(2.0, offset=-1.0)(inputs))
    pooled = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(features))
    return keras.Model(inputs, layers.Dense(labels, activation="softmax")(pooled))


if args.model == "mobilenet":
    model = mobilenet()
else:
    filters = (16, 32) if args.model == "cnn" else (32, 64, 128, 128)
    hidden = 64 if args.model == "cnn" else 512
    model = keras.Sequential(
        [
            keras.Input(shape),
            *convolutions(*filters),
            layers.Flatten(),
            layers.Dense(hidden, activation="relu"),
            layers.Dense(labels, activation="softmax"),
        ]
    )
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, validation_data=held_out, epochs=args.epochs)
