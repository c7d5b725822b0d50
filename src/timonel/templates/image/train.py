"""A convolutional network for images in label folders: plain Keras."""

import argparse

import keras

from timonel.data import load

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--pretrained", help="imagenet, or a file of weights for MobileNetV2")
args = parser.parse_args()

images = {"batch_size": args.batch_size, "image_size": "auto"}
if args.pretrained:
    images["channels"] = 3
train = load(split="train", **images)
validation = load(split="validation", **images)

shape = train.element_spec[0].shape[1:]
model = keras.Sequential([keras.Input(shape)])
if args.pretrained:
    model.add(keras.layers.Rescaling(2, offset=-1))
    try:
        base = keras.applications.MobileNetV2(
            input_shape=shape, include_top=False, pooling="avg", weights=args.pretrained
        )
    except Exception as error:  # a download that fails raises no narrower class
        raise SystemExit(
            f"cannot load the weights {args.pretrained!r} ({error}): "
            "connect to the internet, or give a file of weights with --set pretrained=FILE"
        ) from error
    base.trainable = False
    model.add(base)
else:
    if shape[2] == 3 and min(shape[:2]) > 64:
        print("hint: for photographs, --set pretrained=imagenet starts from trained weights")
    filters, side = 32, min(shape[:2])
    while side > 8:  # a photograph is halved four times, a digit of 8 x 8 pixels never
        model.add(keras.layers.Conv2D(filters, 3, strides=2, padding="same"))
        # Over all rows of a batch, wherever they are.
        model.add(keras.layers.BatchNormalization(synchronized=True))
        model.add(keras.layers.ReLU())
        filters, side = min(2 * filters, 128), side // 2
    model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
    model.add(keras.layers.Conv2D(64, 3, padding="same", activation="relu"))
    model.add(keras.layers.MaxPooling2D(padding="same"))
    model.add(keras.layers.Flatten())
model.add(keras.layers.Dropout(0.3))
model.add(keras.layers.Dense(len(train.class_names), activation="softmax"))

model.compile(
    optimizer=keras.optimizers.Adam(args.lr),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(train, validation_data=validation, epochs=args.epochs)
