"""A ``fit`` that is broken off anywhere goes on to the very weights it would have had.

In one process: what is killed is a call of ``fit``, by an error no callback expects, and what goes
on is another call on another model. Jobs of real processes are in ``tests/training/test_resume``.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from timonel.data import Dataset as Converted
from timonel.data import load, load_registry
from timonel.errors import TimonelError
from timonel.training.settings import CheckpointPolicy, Settings
from timonel.training.worker.context import context
from timonel.training.worker.fit.agreement import Agreement, TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.loops import LoopCheckpointer
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services
from timonel.training.worker.private import hidden_state
from timonel.training.worker.termination import Terminated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*shuffle=True.*:UserWarning"),
    # Of Keras 3 and NumPy 2, where weights are read.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

FITS = {keras: keras.Model.fit, tf_keras: tf_keras.Model.fit}
KERASES = [keras, tf_keras]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
EPOCHS = 3


class KilledError(BaseException):
    """Stands for the end of the process."""


@dataclass
class Result:
    """What a call of ``fit`` has left behind."""

    weights: list[Any]
    history: dict[str, list[float]]
    steps: list[Any]

    def is_same(self, other: Result) -> bool:
        same = all(
            np.array_equal(ours, theirs)
            for ours, theirs in zip(self.weights, other.weights, strict=True)
        )
        tail = other.steps[-len(self.steps) :] if self.steps else []
        return same and self.history == other.history and self.steps == tail


@dataclass
class Training:
    """A script that is started again and again."""

    keras: Any
    root: Path
    data: Callable[[], dict[str, Any]]
    policy: CheckpointPolicy
    stop_on_nan: bool = False
    calls: int = 1

    def run(
        self,
        *,
        kill_at: int | None = None,
        at_boundary: Any = None,
        more: Sequence[Any] = (),
        **fit: Any,
    ) -> Result:
        self.keras.backend.clear_session()
        self.keras.utils.set_random_seed(5)
        hidden_state.make_generators_restorable(self.keras)
        self.root.mkdir(exist_ok=True)
        checkpoints = Checkpoints(
            self.root / "c", writes=True, progress=self.root / "progress", policy=self.policy
        )
        agreement = Agreement()
        services = Services(
            self.keras,
            context().cluster,
            checkpoints,
            self.root,
            settings=Settings.of({"stop_on_nan": self.stop_on_nan}),
            agreement=agreement,
        )
        self.keras.Model.fit = FITS[self.keras]
        Fits(services).install()
        with services.variables.watched():
            return self._run(checkpoints, agreement, kill_at, at_boundary, more, fit)

    def _run(
        self,
        checkpoints: Checkpoints,
        agreement: Agreement,
        kill_at: int | None,
        at_boundary: Any,
        more: Sequence[Any],
        fit: dict[str, Any],
    ) -> Result:
        model = small_model(self.keras)
        steps = Steps(self.keras, kill_at, at_boundary and (lambda: at_boundary(agreement, model)))
        options = {"epochs": EPOCHS, "verbose": 0, **self.data(), **fit}
        try:
            for _ in range(self.calls):
                callbacks = [*helpers(self.keras), *more, steps.callback]
                history = model.fit(callbacks=callbacks, **options)
        finally:
            checkpoints.drain()
        plain = {name: [float(v) for v in values] for name, values in history.history.items()}
        return Result(model.get_weights(), plain, steps.seen)


class Steps:
    """Notes each step of this process, and kills it at one."""

    def __init__(self, flavour: Any, kill_at: int | None, at_end: Any) -> None:
        self.seen: list[Any] = []
        outer = self

        class Callback(flavour.callbacks.Callback):  # type: ignore[misc] # no types
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if len(outer.seen) == kill_at:
                    raise KilledError

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                outer.seen.append((batch, float(logs["loss"])))
                if at_end is not None and len(outer.seen) == 4:
                    at_end()

        self.callback = Callback()


def small_model(flavour: Any) -> Any:
    layers = flavour.layers
    model = flavour.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        flavour.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def helpers(flavour: Any) -> list[Any]:
    callbacks = flavour.callbacks
    return [
        callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
    ]


@pytest.fixture(autouse=True)
def _original_fits() -> Iterator[None]:
    load_registry.reset()
    yield
    load_registry.reset()
    for flavour, fit in FITS.items():
        flavour.Model.fit = fit


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Training]:
    numbers = itertools.count()

    def make(flavour: Any, data: Any, **policy: Any) -> Training:
        chosen = CheckpointPolicy(**{"checkpoint_steps": 2, **policy})
        return Training(flavour, tmp_path / str(next(numbers)), data, chosen)

    return make


def pipeline() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def batches() -> Iterator[Any]:
    random = np.random.default_rng(4)
    while True:
        rows = random.integers(0, len(X), 16)
        yield X[rows], Y[rows]


def sequence(flavour: Any) -> Any:
    class Numbered(flavour.utils.Sequence):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.order = np.arange(len(X))

        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Any:
            rows = self.order[number * 16 : number * 16 + 16]
            return X[rows], Y[rows]

        def on_epoch_end(self) -> None:
            np.random.shuffle(self.order)

    return Numbered()


def split_of_a_cache(_: Any) -> dict[str, Any]:
    shuffled = pipeline().shuffle(90).cache()
    return {"x": shuffled.skip(4).batch(16), "validation_data": shuffled.take(4).batch(4)}


def drawn(_: Any) -> dict[str, Any]:
    order, noise = np.random.default_rng(3), np.random.default_rng(4)

    def rows() -> Iterator[Any]:
        for row in order.permutation(len(X)):
            yield X[row], Y[row]

    def noisy(x: Any) -> Any:
        return (x + noise.normal(size=x.shape)).astype("float32")

    def augmented(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(noisy, [x], tf.float32), x.shape), y

    spec = tf.TensorSpec(X.shape[1:]), tf.TensorSpec((), tf.int64)
    made = tf.data.Dataset.from_generator(rows, output_signature=spec)
    sized = made.apply(tf.data.experimental.assert_cardinality(len(X)))
    return {"x": sized.map(augmented).batch(16), **VALID}


WEIGHTS = {0: 1.0, 1: 2.0, 2: 1.0}
VALID = {"validation_data": (X[:32], Y[:32])}
DATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "arrays": lambda _: {
        "x": X, "y": Y, "batch_size": 16, "validation_split": 0.3, "class_weight": WEIGHTS,
    },
    "shuffle": lambda _: {"x": pipeline().cache().shuffle(50).batch(16), **VALID},
    "repeat": lambda _: {
        "x": pipeline().shuffle(50).repeat().batch(16), "steps_per_epoch": 5, **VALID
    },
    "shuffled twice": lambda _: {"x": pipeline().shuffle(50).batch(30).repeat(2), **VALID},
    "generator": lambda _: {"x": batches(), "steps_per_epoch": 5, **VALID},
    "sequence": lambda flavour: {"x": sequence(flavour), **VALID},
    "split": split_of_a_cache,
    "drawn": drawn,
}  # fmt: skip


@pytest.mark.parametrize(
    ("flavour", "kind"),
    [
        pytest.param(
            flavour,
            kind,
            id=f"{flavour.__name__}-{kind}",
            # The default tests take each kind with one Keras.
            marks=[] if (number + place) % 2 else [pytest.mark.soak],
        )
        for place, flavour in enumerate(KERASES)
        for number, kind in enumerate(DATA)
    ],
)
def test_killed_twice_within_epochs(
    flavour: Any, kind: str, start: Callable[..., Training]
) -> None:
    unbroken = start(flavour, lambda: DATA[kind](flavour)).run()
    training = start(flavour, lambda: DATA[kind](flavour))
    for steps in (3, 6):
        with pytest.raises(KilledError):
            training.run(kill_at=steps)
    found = training.run()
    assert len(found.steps) < len(unbroken.steps)
    assert found.is_same(unbroken), (found, unbroken)
    # Once more: the call was finished, so nothing is trained.
    assert training.run().steps == []


def shuffled_twice_per_epoch(_: Any) -> dict[str, Any]:
    data = pipeline().shuffle(90, seed=3).batch(16)
    return {"x": data, "validation_data": data.take(2)}


@pytest.mark.parametrize("data", [shuffled_twice_per_epoch, DATA["sequence"], split_of_a_cache])
def test_another_call_on_the_same_data(data: Any, start: Callable[..., Training]) -> None:
    unbroken, training = (start(keras, lambda: data(keras)) for _ in range(2))
    unbroken.calls = training.calls = 2
    expected = unbroken.run()
    # In the second call before its first checkpoint, then in its second epoch.
    for steps in (19, 9):
        with pytest.raises(KilledError):
            training.run(kill_at=steps)
    found = training.run()
    assert len(found.steps) == 10
    assert found.is_same(expected), (found, expected)


@pytest.mark.parametrize("flavour", KERASES)
def test_callbacks_of_kerases_that_save_and_count(
    flavour: Any, tmp_path: Path, start: Callable[..., Training]
) -> None:
    backup, table = tmp_path / "backup", tmp_path / "log.csv"
    begun: list[Any] = []
    dying: list[int] = []

    class Die(flavour.callbacks.Callback):  # type: ignore[misc] # no types
        """Kills once BackupAndRestore has saved an epoch that we have not."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch in dying:
                raise KilledError

    class Count(flavour.callbacks.Callback):  # type: ignore[misc] # no types
        """Counts the steps as TensorBoard of either Keras does."""

        begun = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun += 1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            counter = getattr(self.model, "_train_counter", None)
            begun.append((self.begun, self.begun if counter is None else int(counter.numpy())))

    training = start(flavour, lambda: {"x": X, "y": Y, "batch_size": 16, **VALID})

    def run(*die_at: int, kill_at: int | None = None) -> Result:
        dying[:] = die_at
        backups = flavour.callbacks.BackupAndRestore(str(backup))
        rows = flavour.callbacks.CSVLogger(table)
        try:
            return training.run(kill_at=kill_at, more=[backups, rows, Count(), Die()])
        finally:
            rows.csv_file.close()

    with pytest.raises(KilledError):
        run(1)
    with pytest.raises(KilledError):
        run(kill_at=1)
    found = run()
    assert [len(values) for values in found.history.values()] == [EPOCHS] * len(found.history)
    assert begun[-1] == (18, 18)
    assert len(table.read_text().splitlines()) == 2 + EPOCHS  # epoch 1 was told of twice
    assert not backup.exists() or not any(backup.iterdir())


def test_a_dataset_of_ours(dataset: Converted, start: Callable[..., Training]) -> None:
    def data() -> dict[str, Any]:
        load_registry.reset()
        train = load(dataset.uri, batch_size=8).map(
            lambda x, y: (tf.reshape(x, (-1, 64))[:, :6], y)
        )
        return {"x": train, **VALID}

    unbroken = start(keras, data).run()
    training = start(keras, data, checkpoint_steps=1)
    with pytest.raises(KilledError):
        training.run(kill_at=16)
    assert training.run().is_same(unbroken)


def test_more_workers_have_one_step_less(
    dataset: Converted, start: Callable[..., Training]
) -> None:
    workers = 1

    def data() -> dict[str, Any]:
        load_registry.reset()
        load_registry.configure(load_registry.InputShard(0, workers))
        train = load(dataset.uri, batch_size=40)  # of 96: two whole batches, and a rest
        return {"x": train.map(lambda x, y: (tf.reshape(x, (-1, 64))[:, :6], y)), **VALID}

    class Die(keras.callbacks.Callback):  # type: ignore[misc] # no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KilledError

    training = start(keras, data, checkpoint_steps=1)
    with pytest.raises(KilledError):
        training.run(more=[Die()])
    workers = 2
    found = training.run()
    assert [batch for batch, _ in found.steps] == [0, 1] * (EPOCHS - 1)
    assert [len(values) for values in found.history.values()] == [EPOCHS] * len(found.history)


@pytest.mark.parametrize("flavour", KERASES, ids=lambda found: found.__name__)
def test_who_is_asked_to_leave_saves_first(flavour: Any, start: Callable[..., Training]) -> None:
    def data() -> dict[str, Any]:
        return DATA["arrays"](flavour)

    unbroken = start(flavour, data).run()
    training = start(flavour, data, checkpoint_steps=None)
    with pytest.raises(Terminated):
        training.run(at_boundary=lambda agreement, _: agreement.ask(TaskAction.LEAVE))
    # All four steps of the epoch are done: it leaves before validation.
    (saved,) = (training.root / "c" / "fit-000").glob("epoch-*")
    assert saved.name == "epoch-0000-step-0000004"
    assert training.run().is_same(unbroken)


def test_a_loss_that_is_no_number_ends_the_job(start: Callable[..., Training]) -> None:
    def spoil(agreement: Agreement, model: Any) -> None:
        model.set_weights([weights * np.nan for weights in model.get_weights()])
        agreement.ask(TaskAction.SAVE)

    training = start(keras, lambda: DATA["arrays"](keras))
    training.stop_on_nan = True
    with pytest.raises(
        TimonelError, match=r"NaN or infinite at epoch 2, step 1.*epoch-0000-step-0000002"
    ):
        training.run(at_boundary=spoil)


def test_weights_that_are_nan_are_not_kept(
    start: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(_: Agreement, model: Any) -> None:
        model.set_weights([weights * np.nan for weights in model.get_weights()])

    training = start(keras, lambda: DATA["arrays"](keras), keep_best="val_loss")
    with caplog.at_level(logging.WARNING):
        training.run(at_boundary=spoil)
    kept = {path.name for path in (training.root / "c" / "fit-000").iterdir()}
    assert "epoch-0000-step-0000002" in kept
    assert not {name for name in kept if name > "epoch-0002" and name.startswith("epoch")}
    assert "is not saved: some weights are NaN" in caplog.text


@pytest.mark.parametrize("flavour", KERASES, ids=lambda found: found.__name__)
def test_a_loop_of_the_scripts_own(flavour: Any, tmp_path: Path) -> None:
    def loop(root: Path, kill_at: int | None = None) -> tuple[list[Any], int, dict[str, Any]]:
        checkpoints = Checkpoints(
            root, writes=True, progress=tmp_path / "p", policy=CheckpointPolicy(checkpoint_steps=2)
        )
        services = Services(None, context().cluster, checkpoints, root)
        flavour.backend.clear_session()  # as in a new process, names begin anew
        with services.variables.watched():
            return run(services, checkpoints, kill_at)

    def run(
        services: Services, checkpoints: Checkpoints, kill_at: int | None
    ) -> tuple[list[Any], int, dict[str, Any]]:
        flavour.utils.set_random_seed(3)
        model, steps = small_model(flavour), 0
        optimizer = flavour.optimizers.Adam(0.01)
        losses = flavour.losses.SparseCategoricalCrossentropy()
        saved = LoopCheckpointer(
            services,
            0,
            {"model": model, "optimizer": optimizer},
            pipeline().shuffle(50).batch(16),
        )
        saved.state["seen"], saved.state["steps"] = 0, []
        try:
            for _ in saved.epochs(2):
                for x, y in saved.batches():
                    if steps == kill_at:
                        raise KilledError
                    with tf.GradientTape() as tape:
                        loss = losses(y, model(x, training=True))
                    gradients = tape.gradient(loss, model.trainable_variables)
                    optimizer.apply_gradients(
                        zip(gradients, model.trainable_variables, strict=True)
                    )
                    steps += 1
                    saved.state["seen"] += 1
                    saved.state["steps"].append(saved.state["seen"])  # while it may be written
        finally:
            checkpoints.drain()
        return model.get_weights(), steps, saved.state

    root = tmp_path / "killed"
    root.mkdir()
    unbroken, total, _ = loop(tmp_path / "unbroken")
    for steps in (3, 6):
        with pytest.raises(KilledError):
            loop(root, kill_at=steps)
    weights, steps, state = loop(root)
    assert steps < total
    assert state == {"seen": total, "steps": list(range(1, total + 1))}
    assert all(np.array_equal(a, b) for a, b in zip(weights, unbroken, strict=True))
