"""Kinds of models, as parts of scripts: each defines ``model`` and ``compiled``."""

from __future__ import annotations

MODELS = {
    "sequential": """
def model():
    parts = [L.Dense(8, activation="tanh"), L.Dense(1)]
    return compiled(keras.Sequential([keras.Input((6,)), *before(), *parts]))


def compiled(found):
    found.compile(keras.optimizers.Adam(rate()), loss())
    return found
""",
    "functional": """
def model():
    x = first = keras.Input((6,))
    for layer in [*before(), L.Dense(8), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)]:
        x = layer(x)
    return compiled(keras.Model(first, x))


def compiled(found):
    found.compile(keras.optimizers.SGD(rate(), momentum=0.9), loss(), metrics=["mae"])
    return found
""",
    "train_step": """
class Stepping(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [*before(), L.Dense(8, activation="tanh"), L.Dropout(0.2), L.Dense(1)]
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x, training=training) if isinstance(part, DROPS) else part(x)
        return x

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(squares(y, self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        self.tracker.update_state(value)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(tf.reduce_mean(squares(y, self(x))))
        return {"loss": self.tracker.result()}


DROPS = (L.Dropout,)


def model():
    return compiled(Stepping())


def compiled(found):
    found.compile(keras.optimizers.Adam(rate()))
    return found
""",
    "gan": """
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.g = keras.Sequential([keras.Input((3,)), *before(), L.Dense(8, "tanh"), L.Dense(6)])
        self.d = keras.Sequential([keras.Input((6,)), L.Dense(8, "relu"), L.Dense(1)])
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d, g):
        super().compile()
        self.d_optimizer, self.g_optimizer = d, g

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def train_step(self, data):
        x, y = data
        z = x[:, :3]
        with tf.GradientTape() as tape:
            real, fake = self.d(x), self.d(self.g(z))
            value = tf.reduce_mean(squares(tf.ones_like(real), real) + squares(y, fake))
        self.step(self.d_optimizer, tape, value, self.d.trainable_variables)
        self.d_loss.update_state(value)
        with tf.GradientTape() as tape:
            fake = self.d(self.g(z))
            value = tf.reduce_mean(squares(tf.ones_like(fake), fake))
        self.step(self.g_optimizer, tape, value, self.g.trainable_variables)
        self.g_loss.update_state(value)
        return {each.name: each.result() for each in self.metrics}

    def test_step(self, data):
        x, y = data
        return {"real": tf.reduce_mean(squares(y, self.d(x)))}

    def step(self, optimizer, tape, value, weights):
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))


def model():
    return compiled(Gan())


def compiled(found):
    found.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(rate(), momentum=0.9))
    return found
""",
    "target_network": """
def net():
    return keras.Sequential([keras.Input((6,)), *before(), L.Dense(8, "tanh"), L.Dense(1)])


class Online(keras.Model):
    def __init__(self):
        super().__init__()
        self.q, self.t = net(), net()
        self.t.set_weights(self.q.get_weights())

    def call(self, x):
        return self.q(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(squares(y + 0.5 * self.t(x), self.q(x, training=True)))
        weights = self.q.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        return {"loss": value}

    def test_step(self, data):
        x, y = data
        return {"loss": tf.reduce_mean(squares(y, self(x)))}


class Follow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.t.set_weights(self.model.q.get_weights())


CALLBACKS.append(Follow)


def model():
    return compiled(Online())


def compiled(found):
    found.compile(keras.optimizers.Adam(rate()))
    return found
""",
    "two_optimizers": """
class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.low = keras.Sequential([keras.Input((6,)), *before(), L.Dense(8, "tanh")])
        self.high = keras.Sequential([keras.Input((8,)), L.Dense(1)])
        self.second = keras.optimizers.Adam(0.005)

    def call(self, x):
        return self.high(self.low(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            value = tf.reduce_mean(squares(y, self(x)))
        for optimizer, part in ((self.optimizer, self.low), (self.second, self.high)):
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, weights), weights))
        return {"loss": value}

    def test_step(self, data):
        x, y = data
        return {"loss": tf.reduce_mean(squares(y, self(x)))}


def model():
    return compiled(Two())


def compiled(found):
    found.compile(keras.optimizers.SGD(rate(), momentum=0.9))
    return found
""",
    "stateful": """
def model():
    first = keras.Input(batch_shape=(ROWS_OF_REPLICA, 6))
    x = L.GRU(4, stateful=True)(L.Reshape((3, 2))(first))
    for layer in [*before(), L.Dense(1)]:
        x = layer(x)
    return compiled(keras.Model(first, x))


def compiled(found):
    found.compile(keras.optimizers.Adam(rate()), loss())
    return found
""",
}
