"""The network of ``cats_and_dogs.py`` on a converted dataset."""

import keras

from timonel.data import load

model = keras.Sequential(
    [
        keras.Input((150, 150, 3)),
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
model.fit(load(split="train", batch_size=20, image_size=(150, 150), label_mode="binary"), epochs=1)
