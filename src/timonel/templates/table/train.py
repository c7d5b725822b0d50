"""A small dense network for the rows of a table: plain Keras."""

import argparse

import keras

from timonel.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

train = load(split="train", batch_size=args.batch_size)
validation = load(split="validation", batch_size=args.batch_size)
(features,) = train.element_spec[0].shape[1:]

model = keras.Sequential(
    [
        keras.Input((features,)),
        keras.layers.Dense(32, activation="relu"),
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
