"""Classify photographs of cats and dogs with a small convolutional network in plain Keras."""

import argparse

import keras

from timonel.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--batch-size", type=int, default=20)
args = parser.parse_args()

images = {"batch_size": args.batch_size, "image_size": (150, 150), "label_mode": "binary"}
train = load(split="train", **images)
validation = load(split="validation", **images)

layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((150, 150, 3)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(128, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(128, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(512, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=args.lr),
    loss="binary_crossentropy",
    metrics=["accuracy"],
)
model.fit(train, validation_data=validation, epochs=args.epochs)
