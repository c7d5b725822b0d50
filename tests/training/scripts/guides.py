"""Models as Keras' guides have them: steps of their own, few rows, draws without a seed."""

import json

import keras
import numpy as np
import tensorflow as tf

from timonel.training import context

layers = keras.layers
random = np.random.default_rng(0)
x = random.normal(size=(13, 4)).astype("float32")
y = (x @ random.normal(size=(4, 1))).astype("float32")
found = {}


class OwnStep(keras.Model):
    """From the guide "Customizing what happens in fit()"."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_of(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.told(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.told(self.loss_of(y, y_pred), y, y_pred)

    def loss_of(self, y, y_pred):
        return self.compute_loss(y=y, y_pred=y_pred)

    def told(self, loss, y, y_pred):
        for metric in self.metrics:
            if metric.name == "loss":
                if keras.__name__ == "keras":  # tf-keras has counted it
                    metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class OwnLoss(OwnStep):
    """Its loss is a mean of its own, which no replica knows to be a part of one."""

    def loss_of(self, y, y_pred):
        return tf.reduce_mean(tf.square(y - y_pred))


class Gan(keras.Model):
    """From the guide, too: a model without call() whose parts are models."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        self.d_loss = keras.metrics.Mean(name="d_loss")

    @property
    def metrics(self):
        return [self.d_loss]

    def train_step(self, real):
        made = self.generator(tf.random.normal((tf.shape(real)[0], 3)))
        with tf.GradientTape() as tape:
            judged = self.discriminator(tf.concat([made, real], 0))
            loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction=REDUCTION)(
                tf.concat([tf.ones_like(made[:, :1]), tf.zeros_like(real[:, :1])], 0), judged
            )
        weights = self.discriminator.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.d_loss.update_state(loss)
        return {"d_loss": self.d_loss.result()}


class Noise(layers.Layer):
    """Draws without a seed."""

    def call(self, inputs):
        return inputs + 0.01 * DRAW(tf.shape(inputs))


class Total(keras.metrics.Metric):
    """Its result is a variable."""

    def __init__(self):
        super().__init__(name="total")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.cast(y_true, "float32")))

    def result(self):
        return self.total

    def reset_state(self):
        self.total.assign(0.0)


REDUCTION = "sum_over_batch_size" if keras.__name__ == "keras" else "sum"
DRAW = keras.random.normal if keras.__name__ == "keras" else tf.random.normal


def note(name, model, history):
    found[name] = {key: [float(value) for value in values] for key, values in history.items()}
    found[f"{name} weights"] = [weight.tolist() for weight in model.get_weights()]


def dense(kind=keras.Model):
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, "tanh", kernel_regularizer="l2")(inputs)
    return kind(inputs, layers.Dense(1)(hidden))


for name, kind in (("plain", keras.Model), ("own step", OwnStep), ("own loss", OwnLoss)):
    keras.utils.set_random_seed(3)
    model = dense(kind)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    # 5 rows for 2 replicas, then 3, and 2 and then 1 in validation.
    history = model.fit(
        x,
        y,
        batch_size=5,
        epochs=2,
        shuffle=False,
        validation_data=(x[:5], y[:5]),
        validation_batch_size=2,
        verbose=0,
    )
    note(name, model, history.history)

# A layer that cannot take an empty batch.
keras.utils.set_random_seed(3)
recurrent = keras.Sequential([keras.Input((4, 1)), layers.LSTM(3), layers.Dense(2, "softmax")])
recurrent.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
rows, labels = x[..., None], (y[:, 0] > 0).astype("int64")
for count, size in ((1, 1), (1, 32), (3, 2)):
    few = rows[:count]
    found[f"predict {count}"] = recurrent.predict(few, batch_size=size, verbose=0).tolist()
    found[f"evaluate {count}"] = recurrent.evaluate(few, labels[:count], batch_size=size, verbose=0)
found["predict_on_batch"] = recurrent.predict_on_batch(rows[:3]).tolist()

gan = Gan()
gan.compile(optimizer="sgd")
gan_history = gan.fit(x[:12], batch_size=6, verbose=0).history
noisy = keras.Sequential([keras.Input((4,)), Noise(), layers.Dense(1)])
noisy.compile("sgd", "mse", metrics=[Total()])
noisy_history = noisy.fit(x, y, batch_size=5, epochs=2, verbose=0).history
found["total"] = noisy_history["total"]
finite = {**gan_history, "noise": noisy_history["loss"]}
result = {"found": found, "finite": {key: [float(v) for v in finite[key]] for key in finite}}
here = context()
(here.job_dir / f"{here.cluster.task_id}.json").write_text(json.dumps(result))
