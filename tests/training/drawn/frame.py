"""What all scripts share, their data, and the calls of ``fit``, as parts of scripts.

Arguments of a script are ``kill`` or ``copy``, the task that this concerns, and places as
``call:epoch:batch``. It is killed at each place; or the job's folder, which is what a kill there
leaves, is copied at the first one, and the script goes on. It then exits without an export.
"""

from __future__ import annotations

STEPS = 8
"""Steps of each epoch of each call of ``fit``."""

BEGIN = """\
import collections, hashlib, json, os, random, shutil, signal, sys, threading
import numpy as np
import tensorflow as tf
{keras}
from timonel.training import context

LEAVE, TARGET, *KILLS = sys.argv[1:]
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
        place = f"{{self.label}}:{{self.epoch}}:{{batch}}"
        flag = JOB.job_dir / f"killed-{{place}}"
        if JOB.cluster.task_id == TARGET and place in KILLS and not flag.exists():
            flag.touch()
            kill() if LEAVE == "kill" else copy()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def copy():
    for thread in threading.enumerate():
        if thread.name == "timonel-checkpoint":
            thread.join()
    number = len(list(JOB.job_dir.glob("killed-*")))
    shutil.copytree(JOB.job_dir, JOB.job_dir.with_name(f"job-{{number}}"))
    KILLS.clear()


def variable(value, name):
    if keras.__name__ == "keras":
        return keras.Variable(value, trainable=False, name=name)
    return tf.Variable(value, trainable=False, name=name)


def number(value):
    return float(tf.convert_to_tensor(value))


def remaining(made):
    return made


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

ROWS = """
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
    "shared_sequence": """
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


ONE = Rows()


def data():
    return {"x": ONE}
""",
    "shared_dataset": """
SHARED = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(128, seed=4).batch(16)


def data():
    return {"x": SHARED}
""",
    "validated_dataset": """
SHARED = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(128, seed=4).batch(16)


def data():
    return {"x": SHARED, "validation_data": SHARED.take(2)}
""",
    "split_cache": """
def data():
    found = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(128).cache()
    return {"x": found.batch(16), "validation_data": found.take(32).batch(16)}
""",
    "drawn_rows": """
def data():
    order, noise = np.random.default_rng(9), np.random.default_rng(8)

    def rows():
        for row in order.permutation(128):
            yield X[row], Y[row]

    def noisy(x):
        return (x + 0.1 * noise.normal(size=x.shape)).astype("float32")

    def augmented(x, y):
        return tf.ensure_shape(tf.numpy_function(noisy, [x], tf.float32), (6,)), y

    spec = tf.TensorSpec((6,)), tf.TensorSpec((1,))
    found = tf.data.Dataset.from_generator(rows, output_signature=spec)
    found = found.apply(tf.data.experimental.assert_cardinality(128))
    return {"x": found.map(augmented).batch(16)}
""",
    "steps": """
SHARED = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(128, seed=4).batch(16).repeat()


def data():
    return {"x": SHARED, "steps_per_epoch": 8}
""",
    "generator": """
def batches(chance):
    while True:
        rows = chance.integers(0, 128, 16)
        yield X[rows], Y[rows]


def data():
    return {"x": batches(np.random.default_rng(9)), "steps_per_epoch": 8}
""",
}

FIT = """

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


# A job that resumes within the last epoch makes no callbacks for the inner fits before it.
def remaining(made):
    return made[:1] + made[-1:]


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
    "freeze": """
class Freeze(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            for layer in self.model.layers:
                layer.trainable = False


outer(model(), "a", 3, [Freeze()])
""",
    "cleared": """
outer(model(), "a", 2)
keras.backend.clear_session()
outer(model(), "b", 2)
""",
}
CALLS = {
    "one": {"a": 3},
    "two": {"a": 2, "b": 2},
    "new_models": {"a": 2, "b": 2, "c": 2},
    "inner": {"a": 3, "inner 0": 1, "inner 1": 1, "inner 2": 1},
    "compile": {"a": 3},
    "freeze": {"a": 3},
    "cleared": {"a": 2, "b": 2},
}
"""Calls of ``fit`` by label, with their epochs."""

END = """
values = [weight.tolist() for found in MODELS for weight in found.get_weights()]
bits = hashlib.sha256(b"".join(w.tobytes() for m in MODELS for w in m.get_weights())).hexdigest()
state = {name: read() for name, read in STATE.items()}
result = {"histories": HISTORIES, "state": state, "values": values, "bits": bits}
(JOB.job_dir / f"{JOB.cluster.task_id}.json").write_text(json.dumps(result))
if LEAVE == "copy":
    os._exit(0)
"""
