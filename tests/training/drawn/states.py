"""Kinds of state that scripts change while they train, as parts of scripts."""

from __future__ import annotations

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
    for each in remaining(Python.made)
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
STATE["own"] = lambda: [each.count for each in remaining(Own.made)]
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
