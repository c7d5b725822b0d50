"""A small dense network for the rows of a table, for classes or for a number: plain Keras."""

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
    ]
)
if train.class_names:
    model.add(keras.layers.Dense(len(train.class_names), activation="softmax"))
    loss, metric = "sparse_categorical_crossentropy", "accuracy"
else:
    model.add(keras.layers.Dense(1))
    # The network learns a number of mean 0 and deviation 1; this makes it the label's again.
    model.add(keras.layers.Rescaling(train.target.std or 1.0, offset=train.target.mean))
    loss, metric = "mean_squared_error", "mean_absolute_error"
model.compile(optimizer=keras.optimizers.Adam(args.lr), loss=loss, metrics=[metric])
model.fit(train, validation_data=validation, epochs=args.epochs)
