"""``numerics_child.py FLAVOUR all|abort``: what `test_gradients` asks of one Keras, as JSON."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import logging
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.cluster import Cluster
from timonel.training.settings import Numerics, Settings
from timonel.training.worker import optimizing
from timonel.training.worker.inputs import fit_data, sharding
from timonel.training.worker.numerics import gradients, precision
from timonel.training.worker.numerics.gradients import GradientPlan
from timonel.training.worker.numerics.learning_rate import RateScaling
from timonel.training.worker.private import keras_fit, optimizers
from timonel.training.worker.strategy import devices, strategies

FLAVOUR = sys.argv[1]
GRANTED = devices.configure(devices.HostPosition(), per_worker=2, memory=None, requested_threads=1)
keras = importlib.import_module(FLAVOUR)
ALONE = Cluster({"chief": ("127.0.0.1:0",)}, "chief", 0)
X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")


def main() -> dict[str, Any]:
    mirrored = strategies.build("mirrored", ALONE, Settings.of({}))
    if FLAVOUR == "keras":
        keras_fit.install_keras_hooks()
    alone = tf.distribute.get_strategy()
    return {
        "devices": of_devices(),
        "accumulation": of_accumulation(alone, mirrored),
        "clipped": difference(train(alone, clipped), train(mirrored, clipped)),
        "unbuilt": difference(train(alone, clipped), train(mirrored, clipped, builds=False)),
        "central_storage": of_central_storage(alone),
        "compression": of_compression(mirrored),
        "float16": of_float16(mirrored),
        "messages": of_messages(mirrored),
        "hooks": of_hooks(mirrored),
        "learning_rate": of_learning_rate(),
        "uneven": of_uneven(mirrored),
        "float16_policy": of_float16_policy(mirrored),
        "own_policy": of_own_policy(),
        "xla": of_xla(),
        "refused": of_refusals(),
        "batches": of_batches(),
    }


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


def clipped() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1)


def adam_schedule() -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    return keras.optimizers.Adam(rate)


def model_of(units: int = 16) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.layers.InputLayer((8,)),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dense(2, "softmax", dtype="float32"),
        ]
    )


class Loop:
    """A training loop of one's own, each step of which takes a global batch of ``size`` rows."""

    def __init__(
        self,
        strategy: Any,
        make: Any,
        size: int,
        plan: GradientPlan,
        rule: RateScaling,
        *,
        builds: bool = True,
    ) -> None:
        self.install = functools.partial(optimizers.install, keras, plan, rule)
        self.install()
        self.strategy, self.size = strategy, size
        with strategy.scope():
            self.model, self.optimizer = model_of(), make()
            if builds:
                self.optimizer.build(self.model.trainable_variables)
        # Keras' steps are functions within functions.
        self.step = tf.function(self._step if builds else tf.function(self._step))

    def _step(self, x: Any, y: Any) -> None:
        self.strategy.run(self._on_replica, args=(x, y))

    def _on_replica(self, x: Any, y: Any) -> None:
        replicas = self.strategy.num_replicas_in_sync
        rows = self.size // replicas
        mine = tf.distribute.get_replica_context().replica_id_in_sync_group * rows
        with tf.GradientTape() as tape:
            predicted = self.model(x[mine : mine + rows], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y[mine : mine + rows], predicted)
            loss = tf.reduce_mean(losses) / replicas
        variables = self.model.trainable_variables
        found = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(found, variables, strict=True))

    def run(self) -> list[Any]:
        self.install()  # another loop may have been made since
        for _ in range(2):
            for begin in range(0, len(X), self.size):
                rows = slice(begin, begin + self.size)
                self.step(tf.constant(X[rows]), tf.constant(Y[rows]))
        return weights(self.model)


def train(
    strategy: Any,
    make: Any,
    *,
    size: int = 32,
    plan: GradientPlan | None = None,
    rule: RateScaling | None = None,
    builds: bool = True,
) -> list[Any]:
    plan, rule = plan or GradientPlan(), rule or RateScaling()
    return Loop(strategy, make, size, plan, rule, builds=builds).run()


def weights(model: Any) -> list[Any]:
    return [np.array(weight) for weight in model.get_weights()]


def difference(ours: list[Any], theirs: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def of_devices() -> dict[str, Any]:
    return {
        "names": GRANTED.names,
        "granted": GRANTED.threads,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "logical": len(tf.config.list_logical_devices("CPU")),
    }


def of_accumulation(alone: Any, mirrored: Any) -> dict[str, Any]:
    def case(strategy: Any, make: Any) -> dict[str, Any]:
        whole = Loop(strategy, make, 32, GradientPlan(), RateScaling())
        parts = Loop(strategy, make, 8, GradientPlan(accumulate=4), RateScaling())
        first = weights(whole.model)
        return {
            "difference": difference(whole.run(), parts.run()),
            "moved": difference(first, weights(whole.model)),
            "updates": [int(loop.optimizer.iterations.numpy()) for loop in (whole, parts)],
        }

    return {
        "alone-sgd": case(alone, sgd),
        "mirrored-clipped": case(mirrored, clipped),
        "mirrored-adam_schedule": case(mirrored, adam_schedule),
    }


def of_central_storage(alone: Any) -> dict[str, float]:
    strategy = strategies.build("central-storage", ALONE, Settings.of({"devices_per_worker": 2}))
    assert strategy.num_replicas_in_sync == 2
    if FLAVOUR == "keras":
        keras_fit.fix_shared_metrics()
    histories = [fit_in(one, steps=6).history for one in (alone, strategy)]
    return {
        "weights": difference(train(alone, sgd), train(strategy, sgd)),
        **{
            name: float(np.abs(np.subtract(values, histories[1][name])).max())
            for name, values in histories[0].items()
        },
    }


def fit_in(strategy: Any, *, steps: int) -> Any:
    optimizers.install(keras, GradientPlan(), RateScaling())
    rows = slice(0, steps * 8)
    with strategy.scope():
        model = model_of()
        model.compile(sgd(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model.fit(X[rows], Y[rows], batch_size=8, shuffle=False, epochs=2, verbose=0)


def of_compression(mirrored: Any) -> dict[str, Any]:
    exact, result = train(mirrored, sgd), {}
    for kind in ("bfloat16", "float16"):
        loop = Loop(mirrored, sgd, 32, GradientPlan(compression=kind), RateScaling())  # type: ignore[arg-type]
        found = difference(exact, loop.run())
        graph = loop.step.get_concrete_function(tf.constant(X[:32]), tf.constant(Y[:32])).graph
        added = {
            op.outputs[0].dtype.name
            for op in graph.get_operations()
            if op.type.startswith(("AddN", "CollectiveReduce"))
        }
        # One scalar in float32 travels ahead of float16: the largest gradient.
        result[kind] = {"difference": found, "types": sorted(added - {"float32"})}
    return result


def of_float16(mirrored: Any) -> dict[str, Any]:
    def sums(*values: Any) -> list[Any]:
        def reduce(found: list[Any]) -> list[Any]:
            return list(tf.distribute.get_replica_context().all_reduce("SUM", found))

        def on_replica() -> list[Any]:
            made = [value() if callable(value) else tf.constant(value) for value in values]
            found = gradients.reduced(made, "float16", reduce)
            return [tf.reshape(tf.convert_to_tensor(one), [-1]) for one in found]

        per_replica = tf.function(lambda: mirrored.run(on_replica))()
        return [
            float(number)
            for value in per_replica
            for number in mirrored.experimental_local_results(value)[0].numpy()
        ]

    def slices() -> Any:
        return tf.IndexedSlices(
            tf.constant([[1.5], [0.5]]), tf.constant([0, 1]), tf.constant([2, 1])
        )

    return {
        "large": sums([1e30, 2e-3 * 1e30]),
        "small": sums([1e-20]),
        "zero": sums([0.0]),
        "broken": [str(number) for number in (*sums([float("nan")]), *sums([float("inf")]))],
        "slices": sums([1.0], slices)[1:],
    }


def of_messages(mirrored: Any) -> dict[str, Any]:
    """What `gradients.sum_between_workers` puts into one message, and what comes of it."""
    sent: set[Any] = set()

    def on_replica() -> list[Any]:
        context = tf.distribute.get_replica_context()
        all_reduce = context.all_reduce

        def note(op: Any, values: list[Any], options: Any) -> list[Any]:
            sent.add((options.bytes_per_pack, *(value.shape[0] for value in values)))
            return list(all_reduce(op, values, options))

        context.all_reduce = note
        sizes = (2**18, 1, 2**19, 3)
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([5, 2]))
        values = [*(tf.fill([size], float(size)) for size in sizes), slices]
        found = gradients.sum_between_workers(values)
        return [tf.reduce_max(tf.convert_to_tensor(one)) for one in found]

    sums = tf.function(lambda: mirrored.run(on_replica))()
    firsts = [mirrored.experimental_local_results(one)[0] for one in sums]
    return {"sent": sorted(sent), "sums": [float(one.numpy()) for one in firsts]}


def of_hooks(mirrored: Any) -> dict[str, int]:
    counts = {"before": 0, "after": 0}

    def count(when: str, found: list[Any]) -> list[Any]:
        counts[when] += 1
        return found

    gradients.before_reduce.append(functools.partial(count, "before"))
    gradients.after_reduce.append(functools.partial(count, "after"))
    Loop(mirrored, sgd, 32, GradientPlan(), RateScaling()).step.get_concrete_function(
        tf.constant(X[:32]), tf.constant(Y[:32])
    )
    gradients.before_reduce.clear()
    gradients.after_reduce.clear()
    return counts


def of_learning_rate() -> dict[str, Any]:
    optimizers.install(keras, GradientPlan(), rule := RateScaling(4.0, 4))

    def steps(optimizer: Any, count: int) -> list[float]:
        variable = keras.Variable([0.0]) if FLAVOUR == "keras" else tf.Variable([0.0])
        optimizer.build([variable])
        taken = []
        for _ in range(count):
            before = float(variable.numpy()[0])
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
            taken.append(before - float(variable.numpy()[0]))
        return taken

    own, resumed, after, scheduled = sgd(), sgd(), sgd(), None
    result: dict[str, Any] = {
        "steps": steps(own, 5),
        "seen": float(own.learning_rate.numpy()),
        "told": optimizers.learning_rate(own, rule),
    }
    resumed.iterations.assign(2) if FLAVOUR == "tf_keras" else resumed._iterations.assign(2)
    result["resumed"] = steps(resumed, 1)[0]
    after.learning_rate = after.learning_rate * 0.5
    result["after_callback"] = steps(after, 4)[3]
    optimizers.install(keras, GradientPlan(), RateScaling(1.0, 4))
    scheduled = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.4, 0.2, 0.1])
    result["schedule"] = steps(keras.optimizers.SGD(scheduled), 3)
    return result


def of_uneven(mirrored: Any) -> str:
    """The first batch has fewer rows than there are replicas."""
    optimizers.install(keras, GradientPlan(), RateScaling())
    original = mirrored.experimental_distribute_dataset
    sharding.install(mirrored, 1)
    sharding.expect_training_data()
    with mirrored.scope():
        model = model_of()
        model.compile("sgd", "sparse_categorical_crossentropy")
        history = model.fit(X[:1], Y[:1], batch_size=16, verbose=0)
    mirrored.experimental_distribute_dataset = original
    return "finite" if np.isfinite(history.history["loss"][0]) else "broken"


def of_float16_policy(mirrored: Any) -> dict[str, Any]:
    def fitted() -> Any:
        model = model_of()
        model.compile(sgd(), "sparse_categorical_crossentropy")
        model.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
        return model

    optimizers.install(keras, GradientPlan(), RateScaling())
    exact = weights(fitted())
    precision.configure(keras, Numerics(precision="float16"))
    policy, model = keras_fit.policy_of(keras), fitted()
    result = {
        "policy": policy,
        "optimizer": type(model.optimizer).__name__,
        "difference": difference(exact, weights(model)),
        "overflow": of_overflow(mirrored),
    }
    precision._set_policy(keras, "float32")
    return result


def of_overflow(mirrored: Any) -> dict[str, bool]:
    wrapper = (
        keras.optimizers.LossScaleOptimizer
        if FLAVOUR == "keras"
        else keras.mixed_precision.LossScaleOptimizer
    )
    with mirrored.scope():
        variable = keras.Variable([1.0]) if FLAVOUR == "keras" else tf.Variable([1.0])
        optimizer = wrapper(sgd())
        optimizer.build([variable])

    def on_replica() -> None:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        gradient = tf.where(first, tf.constant([1.0]), tf.constant([np.inf]))
        optimizer.apply_gradients([(gradient, variable)])

    def scale() -> float:
        return float(
            (optimizer.dynamic_scale if FLAVOUR == "keras" else optimizer.loss_scale).numpy()
        )

    before = scale()
    # What tf-keras wants called before it applies anything.
    getattr(optimizer, "get_scaled_loss", lambda loss: loss)(tf.constant(1.0))
    getattr(optimizer, "get_unscaled_gradients", lambda found: found)([tf.constant([1.0])])
    tf.function(lambda: mirrored.run(on_replica))()
    return {"moved": float(variable.numpy()[0]) != 1.0, "halved": scale() == before / 2}


def of_own_policy() -> dict[str, str]:
    precision.configure(keras, Numerics(precision="float16"))
    precision._set_policy(keras, "mixed_bfloat16")
    with logged() as text:
        policy = keras_fit.policy_of(keras)
        precision.warn_of_own_policy(policy, Numerics(precision="float16"))
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    precision._set_policy(keras, "float32")
    layers = keras_fit.policies_in(model)
    return {"policy": policy, "log": text.getvalue(), "layers": layers}


def of_xla() -> dict[str, Any]:
    def fitted(*, xla: bool) -> Any:
        model = model_of()
        model.compile(sgd(), "sparse_categorical_crossentropy")
        model.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
        if xla:
            precision.compile_with_xla(model)
        model.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
        return model

    plain, compiled = fitted(xla=False), fitted(xla=True)
    return {
        "compiled": bool(compiled.jit_compile) and not plain.jit_compile,
        "difference": difference(weights(plain), weights(compiled)),
    }


def of_refusals() -> dict[str, str]:
    eager = model_of()
    eager.compile(sgd(), "mse", run_eagerly=True)
    servers = Settings.of({"cross_device_ops": "nccl", "devices_per_worker": 2})
    between = Settings.of({"collectives": "nccl"})

    def numbers() -> Any:
        yield X, Y

    place = devices.HostPosition()
    return {
        "eager": refusal(precision.compile_with_xla, eager),
        "optimizer": refusal(optimizing.check_optimizer, object(), GradientPlan(accumulate=2)),
        "generator": refusal(fit_data.make_global, {"x": numbers()}, 2),
        "unbatched": refusal(
            fit_data.make_global, {"x": tf.data.Dataset.from_generator(numbers, "float32")}, 2
        ),
        "late": refusal(
            devices.configure, place, per_worker=3, memory=None, requested_threads=None
        ),
        "memory": refusal(
            devices.configure, place, per_worker=1, memory=10**9, requested_threads=None
        ),
        "nccl": refusal(strategies.build, "mirrored", ALONE, servers),
        "collectives": refusal(strategies.build, "multi-worker", ALONE, between),
        "tpu": refusal(strategies.build, "tpu", ALONE, Settings()),
    }


def refusal(function: Any, *arguments: Any, **keywords: Any) -> str:
    try:
        function(*arguments, **keywords)
    except TimonelError as error:
        return str(error)
    return "no error"


def of_batches() -> dict[str, Any]:
    arrays: dict[str, Any] = {"x": X, "batch_size": 32}
    default: dict[str, Any] = {"x": X}
    dataset: dict[str, Any] = {"x": tf.data.Dataset.range(20).batch(4)}
    fit_data.make_global(arrays, 2)
    fit_data.make_global(default, 3)
    fit_data.make_global(dataset, 3)
    sizes = [len(batch) for batch in dataset["x"]]
    return {
        "arrays": arrays["batch_size"],
        "default": default["batch_size"],
        "dataset": sizes[0],
        "partial": sizes == [12, 8],
    }


@contextlib.contextmanager
def logged() -> Any:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger("timonel").addHandler(handler)
    yield text
    logging.getLogger("timonel").removeHandler(handler)


def abort() -> None:
    """Give a replica no rows: what TensorFlow does with that, without us."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.InputLayer((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten()]
        )
        model.compile("sgd", "mse")
        model.fit(np.zeros((17, 8, 8, 1)), np.zeros((17, 72)), batch_size=16, verbose=0)


if __name__ == "__main__":
    if sys.argv[2] == "abort":
        abort()
    else:
        print(json.dumps(main()))
