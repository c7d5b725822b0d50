"""Training scripts put together at random from kinds of state, models, loops and modes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STEPS = 8
"""Steps of each epoch of each call of ``fit``."""

_BEGIN = """\
import collections, hashlib, json, os, random, signal, sys, threading
import numpy as np
import tensorflow as tf
{keras}
from timonel.training import context

TARGET, *KILLS = sys.argv[1:]
JOB = context()
L = keras.layers
FACTORS, NOISES, CALLBACKS, MODELS, HISTORIES, STATE = [], [], [], [], [], {{}}
keras.utils.set_random_seed(3)


class Kill(keras.callbacks.Callback):
    def __init__(self, label):
        super().__init__()
        self.label, self.epoch = label, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        (JOB.job_dir / "trained").touch()
        place = f"{{self.label}}:{{self.epoch}}:{{batch}}"
        flag = JOB.job_dir / f"killed-{{place}}"
        if JOB.cluster.task_id == TARGET and place in KILLS and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def variable(value, name):
    if keras.__name__ == "keras":
        return keras.Variable(value, trainable=False, name=name)
    return tf.Variable(value, trainable=False, name=name)


def number(value):
    return float(tf.convert_to_tensor(value))


class Noisy(L.Layer):
    def call(self, x):
        for noise in NOISES:
            x = x + 0.1 * noise(tf.shape(x))
        return x


def squares(y, p):
    value = tf.square(tf.cast(y, p.dtype) - p)
    for factor in FACTORS:
        value = value * tf.cast(factor(), p.dtype)
    return tf.reduce_mean(value, axis=-1)


def loss():
    return squares


def rate():
    return 0.02


def before():
    return [Noisy()]

"""

STATES = {
    "closure_variable": """
beta = variable(1.0, "beta")
FACTORS.append(lambda: beta)


class Anneal(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        beta.assign(beta * 1.01)


CALLBACKS.append(Anneal)
STATE["beta"] = lambda: number(beta)
""",
    "layer_variable": """
class Counting(L.Layer):
    made = []

    def __init__(self):
        super().__init__()
        self.seen = tf.Variable(
            0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self.made.append(self)

    def call(self, x, training=None):
        if training:
            self.seen.assign_add(tf.reduce_sum(x))
        return x * (1 + 0.1 * tf.sin(self.seen))


def before():
    return [Noisy(), Counting()]


STATE["seen"] = lambda: [number(layer.seen.read_value()) for layer in Counting.made]
""",
    "model_variable": """
class Lasting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if not hasattr(self.model, "lasting"):
            self.model.lasting = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.model.lasting.assign_add(batch)


CALLBACKS.append(Lasting)
STATE["lasting"] = lambda: [int(getattr(each, "lasting", -1)) for each in MODELS]
""",
    "metric": """
outside = keras.metrics.Mean(name="outside")


class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        outside.update_state(next(iter(logs.values())))


CALLBACKS.append(Note)
STATE["outside"] = lambda: number(outside.result())
""",
    "generator": """
generator = tf.random.Generator.from_seed(3)
NOISES.append(lambda shape: generator.normal(shape))
STATE["generator"] = lambda: np.asarray(generator.state).tolist()
""",
    "seed_generator": """
seeds = keras.random.SeedGenerator(7)
NOISES.append(lambda shape: keras.random.normal(shape, seed=seeds))
STATE["seeds"] = lambda: np.asarray(seeds.state).tolist()
""",
    "schedule": """
class Decay(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.rate = variable(0.02, "rate")

    def __call__(self, step):
        return tf.convert_to_tensor(self.rate)

    def get_config(self):
        return {}


decay = Decay()


class Lower(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        decay.rate.assign(decay.rate * 0.99)


def rate():
    return decay


CALLBACKS.append(Lower)
STATE["rate"] = lambda: number(decay.rate)
""",
    "loss_variable": """
class Scaled(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.scale = variable(1.0, "scale")

    def call(self, y, p):
        return squares(y, p) * tf.convert_to_tensor(self.scale)


scaled = Scaled()


class Grow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        scaled.scale.assign(scaled.scale * 1.01)


def loss():
    return scaled


CALLBACKS.append(Grow)
STATE["scale"] = lambda: number(scaled.scale)
""",
    "table": """
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


class Fill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        key = tf.constant([batch], tf.int64)
        table.insert(key, table.lookup(key) + float(next(iter(logs.values()))))


CALLBACKS.append(Fill)
STATE["table"] = lambda: sorted(map(str, zip(*[part.numpy().tolist() for part in table.export()])))
""",
    "python": """
pulse = variable(1.0, "pulse")
FACTORS.append(lambda: pulse)


class Tally:
    def __init__(self):
        self.batches, self.drawn = 0, []


class Python(keras.callbacks.Callback):
    made = []

    def __init__(self):
        super().__init__()
        self.seen, self.recent = set(), collections.deque(maxlen=3)
        self.tally, self.counts = Tally(), collections.Counter()
        self.numpy, self.python = np.random.default_rng(5), random.Random(5)
        self.old, self.total = np.random.RandomState(5), np.zeros(3)
        self.made.append(self)

    def on_train_batch_end(self, batch, logs=None):
        drawn = self.numpy.random() + self.python.random() + self.old.random_sample()
        self.seen.add(round(drawn, 6))
        self.recent.append(drawn)
        self.tally.batches += 1
        self.tally.drawn.append(drawn)
        self.counts[batch] += 1
        self.total += drawn
        pulse.assign(0.9 + 0.01 * sum(self.recent) + 0.001 * self.tally.batches)


CALLBACKS.append(Python)
STATE["python"] = lambda: [
    [
        sorted(each.seen), list(each.recent), each.tally.batches, each.tally.drawn,
        sorted(each.counts.items()), each.total.tolist(), each.numpy.random(),
        each.python.random(), each.old.random_sample(),
    ]
    for each in Python.made
]
""",
    "protocol": """
beat = variable(1.0, "beat")
FACTORS.append(lambda: beat)


class Own(keras.callbacks.Callback):
    made = []

    def __init__(self):
        super().__init__()
        self.lock, self.count = threading.Lock(), 0
        self.made.append(self)

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]

    def on_train_batch_end(self, batch, logs=None):
        with self.lock:
            self.count += batch + 1
        beat.assign(1 + 0.001 * self.count)


CALLBACKS.append(Own)
STATE["own"] = lambda: [each.count for each in Own.made]
""",
    "global_generators": """
gust = variable(1.0, "gust")
FACTORS.append(lambda: gust)


class Draws(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        gust.assign(1 + 0.1 * (random.random() + np.random.random()))


CALLBACKS.append(Draws)
STATE["drawn"] = lambda: [random.random(), np.random.random()]
""",
}

_ROWS = """
ROWS = np.random.default_rng(0)
X = ROWS.normal(size=(128, 6)).astype("float32")
Y = X.sum(1, keepdims=True) + 0.1
ROWS_OF_REPLICA = 16 // tf.distribute.get_strategy().num_replicas_in_sync

"""

DATA = {
    "arrays": """
def data():
    return {"x": X, "y": Y, "batch_size": 16}
""",
    "dataset": """
def data():
    found = tf.data.Dataset.from_tensor_slices((X, Y))
    return {"x": found.shuffle(128, seed=4).batch(16)}
""",
    "sequence": """
class Rows(SEQUENCE):
    def __init__(self):
        super().__init__()
        self.generator, self.order = np.random.default_rng(9), np.arange(128)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        rows = self.order[16 * number : 16 * number + 16]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.generator.shuffle(self.order)


def data():
    return {"x": Rows()}
""",
}

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
class Own(keras.Model):
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


DROPS = (L.Dropout,)


def model():
    return compiled(Own())


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

_FIT = """

def plain(history):
    values = {name: list(map(float, each)) for name, each in history.history.items()}
    return [list(map(int, history.epoch)), values]


def fit(found, label, epochs, more=()):
    if found not in MODELS:
        MODELS.append(found)
    callbacks = [*(kind() for kind in CALLBACKS), *more, Kill(label)]
    history = found.fit(**data(), epochs=epochs, verbose=0, callbacks=callbacks)
    return found, plain(history)


def outer(*args):
    found, history = fit(*args)
    HISTORIES.append(history)
    return found


"""

LOOPS = {
    "one": """
outer(model(), "a", 3)
""",
    "two": """
found = outer(model(), "a", 2)
outer(found, "b", 2)
""",
    "new_models": """
for turn in "abc":
    outer(model(), turn, 2)
""",
    "inner": """
inner = model()


class Inner(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.histories = []

    def on_epoch_end(self, epoch, logs=None):
        self.histories.append(fit(inner, f"inner {epoch}", 1)[1])


calls = Inner()
outer(model(), "a", 3, [calls])
HISTORIES.extend(calls.histories)
""",
    "compile": """
class Again(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            compiled(self.model)
            self.model.make_train_function()


outer(model(), "a", 3, [Again()])
""",
    "cleared": """
outer(model(), "a", 2)
keras.backend.clear_session()
outer(model(), "b", 2)
""",
}
_CALLS = {
    "one": {"a": 3},
    "two": {"a": 2, "b": 2},
    "new_models": {"a": 2, "b": 2, "c": 2},
    "inner": {"a": 3, "inner 0": 1, "inner 1": 1, "inner 2": 1},
    "compile": {"a": 3},
    "cleared": {"a": 2, "b": 2},
}
"""Calls of ``fit`` by label, with their epochs."""

_END = """
values = [weight.tolist() for found in MODELS for weight in found.get_weights()]
bits = hashlib.sha256(b"".join(w.tobytes() for m in MODELS for w in m.get_weights())).hexdigest()
state = {name: read() for name, read in STATE.items()}
result = {"histories": HISTORIES, "state": state, "values": values, "bits": bits}
(JOB.job_dir / f"{JOB.cluster.task_id}.json").write_text(json.dumps(result))
"""

MODES: dict[str, dict[str, Any]] = {
    "one": {},
    "workers": {"workers": 2},
    "devices": {"devices_per_worker": 2},
    "asynchronous": {"ps": 1, "workers": 2},
    "synchronous": {"ps": 1, "workers": 2, "backup_workers": 0},
}
"""Options of the job."""

_SERVED = frozenset({"asynchronous", "synchronous"})
_REFUSED_BY_SERVERS = {
    "stateful": "parameter servers do not support the stateful layer",
    "gan": "train_step applies gradients 2 times",
    "two_optimizers": "train_step applies gradients 2 times",
    "inner": "fit inside a callback of another fit does not work with parameter servers",
    "compile": "parameter servers do not support compile() inside a callback of fit",
}
"""Models and loops that parameter servers refuse."""
_NOT_IN_TF_KERAS = frozenset({"seed_generator"})
_WITHOUT_LOSS = frozenset({"train_step", "gan", "target_network", "two_optimizers"})
"""Models whose own step computes the loss: a loss object has no effect."""


@dataclass(frozen=True)
class Draw:
    """One script, how its job runs, and where it is killed.

    Attributes:
        states: Names of `STATES`.
        data: Name of `DATA`.
        model: Name of `MODELS`.
        loop: Name of `LOOPS`.
        mode: Name of `MODES`.
        keras: ``keras`` or ``tf_keras``.
        kills: After which batches, as ``call:epoch:batch``.
        target: The task that is killed.
    """

    states: tuple[str, ...]
    data: str
    model: str
    loop: str
    mode: str
    keras: str = "keras"
    kills: tuple[str, ...] = ("a:1:3",)
    target: str = "chief-0"

    @property
    def place(self) -> str:
        """The names of data, model and loop."""
        return f"{self.data}-{self.model}-{self.loop}"

    @property
    def is_exact(self) -> bool:
        """Whether two jobs of the script compute the same numbers."""
        return self.mode != "asynchronous"

    @property
    def refusal(self) -> str | None:
        """Part of the message with which the job is refused; None if it runs."""
        if self.mode not in _SERVED:
            return None
        return _REFUSED_BY_SERVERS.get(self.model) or _REFUSED_BY_SERVERS.get(self.loop)

    @property
    def script(self) -> str:
        """The script's text."""
        is_legacy = self.keras == "tf_keras"
        sequence = "keras.utils.Sequence" if is_legacy else "keras.utils.PyDataset"
        parts = [
            _BEGIN.format(keras="import tf_keras as keras" if is_legacy else "import keras"),
            *(STATES[name] for name in self.states),
            _ROWS,
            DATA[self.data].replace("SEQUENCE", sequence),
            MODELS[self.model],
            _FIT,
            LOOPS[self.loop],
            _END,
        ]
        return "".join(parts)


def drawn(chance: random.Random, modes: Sequence[str]) -> Draw:
    """Return a script drawn at random, to run in one of these modes."""
    keras = "tf_keras" if chance.random() < 0.15 else "keras"
    model, loop = chance.choice(list(MODELS)), chance.choice(list(LOOPS))
    mode = chance.choice(modes)
    known = [
        name
        for name in STATES
        if not (keras == "tf_keras" and name in _NOT_IN_TF_KERAS)
        and not (model in _WITHOUT_LOSS and name == "loss_variable")
    ]
    places = [
        f"{label}:{epoch}:{batch}"
        for label, epochs in _CALLS[loop].items()
        for epoch in range(epochs)
        for batch in range(STEPS)
    ]
    has_peers = mode == "workers"
    return Draw(
        states=tuple(sorted(chance.sample(known, chance.randint(1, 4)))),
        data=chance.choice(list(DATA)),
        model=model,
        loop=loop,
        mode=mode,
        keras=keras,
        kills=tuple(chance.sample(places, chance.choice([1, 1, 2]))),
        target=chance.choice(["chief-0", "worker-0"]) if has_peers else "chief-0",
    )
