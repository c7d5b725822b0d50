"""The cats-and-dogs network of the Keras books: 150 x 150 JPEGs, four convolutions, RMSprop 1e-4.

Plain Keras: it is run by ``python`` and by ``timonel train`` alike.
"""

import argparse

import keras
import steps

parser = argparse.ArgumentParser()
parser.add_argument("--images", required=True, help="a folder of two label folders")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps-per-epoch", type=int)
steps.add_options(parser)
options = parser.parse_args()

train = keras.utils.image_dataset_from_directory(
    options.images, label_mode="binary", image_size=(150, 150), batch_size=20, seed=1, verbose=False
)
if options.steps_per_epoch:
    train = train.repeat()
model = keras.Sequential(
    [
        keras.Input((150, 150, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(128, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(128, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.RMSprop(1e-4), "binary_crossentropy", metrics=["accuracy"])
model.fit(
    train,
    epochs=options.epochs,
    steps_per_epoch=options.steps_per_epoch,
    callbacks=steps.callbacks(keras, options, model),
    verbose=0,
)
