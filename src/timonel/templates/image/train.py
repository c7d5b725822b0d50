"""A small convolutional network for images in label folders: plain Keras."""

import argparse

import keras

from timonel.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

SIZE, CHANNELS = (8, 8), 1
images = {"batch_size": args.batch_size, "image_size": SIZE, "channels": CHANNELS}
train = load(split="train", **images)
validation = load(split="validation", **images)

model = keras.Sequential(
    [
        keras.Input((*SIZE, CHANNELS)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(len(train.class_names), activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(args.lr),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(train, validation_data=validation, epochs=args.epochs)
