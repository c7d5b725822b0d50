"""Sequences in ``fit``: the calls that they get from plain Keras, and their state after a kill."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tf_keras

from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.context import context
from timonel.training.worker.fit.agreement import Agreement, TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services
from timonel.training.worker.private import hidden_state
from timonel.training.worker.termination import Terminated

pytestmark = pytest.mark.slow

FITS = {keras: keras.Model.fit, tf_keras: tf_keras.Model.fit}
THREE_EPOCHS: dict[str, Any] = {"epochs": 3, "verbose": 0}
flavours = pytest.mark.parametrize("flavour", FITS, ids=lambda found: found.__name__)
X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def _original_fits() -> Iterator[None]:
    yield
    for flavour, fit in FITS.items():
        flavour.Model.fit = fit


def sequence(flavour: Any, name: str, log: list[str], **options: Any) -> Any:
    base = getattr(flavour.utils, "PyDataset", flavour.utils.Sequence)

    class Drawing(base):  # type: ignore[misc] # no types
        """Draws in each batch, and in each of its functions."""

        def __init__(self) -> None:
            super().__init__(**options)
            self.random = np.random.default_rng(3)
            self.order = np.arange(len(X))
            self.reads = 0
            self.noted = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            self.reads += 1
            rows = self.order[number * 16 : number * 16 + 16]
            return X[rows] + self.random.normal(size=(16, 3)), Y[rows]

        def on_epoch_begin(self) -> None:
            log.append(f"{name} begins")
            self.random.shuffle(self.order)

        def on_epoch_end(self) -> None:
            log.append(f"{name} ends")
            (np if name == "data" else self).random.shuffle(self.order)

    return Drawing()


def callback(flavour: Any, log: list[str], data: Any = None, at: Any = (), act: Any = None) -> Any:
    class Logging(flavour.callbacks.Callback):  # type: ignore[misc] # no types
        epoch = 0

        def on_train_begin(self, logs: Any = None) -> None:
            log.append("training begins")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            log.append(f"epoch {epoch} begins")
            self.epoch = epoch

        def on_test_begin(self, logs: Any = None) -> None:
            log.append("validation begins")

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.reach("validation", self.epoch, batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.reach(self.epoch, batch)
            if data is not None and batch == 1:
                data.noted += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            log.append(f"epoch {epoch} ends")
            self.reach("end", epoch)

        def reach(self, *place: Any) -> None:
            if place == at:
                act()

    return Logging()


def compiled(flavour: Any, **options: Any) -> Any:
    flavour.backend.clear_session()
    flavour.utils.set_random_seed(5)
    hidden_state.make_generators_restorable(flavour)
    model = flavour.Sequential([flavour.Input((3,)), flavour.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def managed(flavour: Any, root: Path, run: Callable[[Agreement], Any], **policy: Any) -> Any:
    """Return the result of ``run`` with a managed ``fit``."""
    root.mkdir(exist_ok=True)
    checkpoints = Checkpoints(
        root / "c", writes=True, progress=root / "progress", policy=CheckpointPolicy(**policy)
    )
    agreement = Agreement()
    services = Services(flavour, context().cluster, checkpoints, root, agreement=agreement)
    flavour.Model.fit = FITS[flavour]
    Fits(services).install()
    try:
        with services.variables.watched():
            return run(agreement)
    finally:
        checkpoints.drain()
        flavour.Model.fit = FITS[flavour]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "later": {"initial_epoch": 1},
    "validated": {"validated": True},
    "seldom": {"validated": True, "validation_freq": 2, "validation_steps": 2},
    "workers": {"workers": 2, "validated": True},
    "no worker": {"workers": 0},
    "half": {"steps_per_epoch": 2},
    "stopped": {"stops": True},
}


# Threads of tf-keras' workers call on_epoch_end, too, at any time.
CALLS = [(each, name) for each in FITS for name in OPTIONS if each is keras or "work" not in name]


@pytest.mark.parametrize(("flavour", "name"), CALLS)
def test_calls_are_those_of_plain_keras(flavour: Any, name: str, tmp_path: Path) -> None:
    def run(_agreement: Any) -> Any:
        options, log = dict(OPTIONS[name]), list[str]()
        workers = {"workers": options.pop("workers")} if "workers" in options else {}
        made = functools.partial(sequence, flavour, log=log, **workers)
        data, validation, model = made("data"), made("validation"), compiled(flavour)
        if options.pop("validated", False):
            options["validation_data"] = validation
        at = (1, 2) if options.pop("stops", False) else None

        def stop() -> None:
            model.stop_training = True

        losses = []
        for _ in range(2):
            found = model.fit(
                data,
                epochs=3,
                verbose=0,
                shuffle=False,
                callbacks=[callback(flavour, log, at=at, act=stop)],
                **options,
            )
            losses.append(found.history)
        model.evaluate(validation, verbose=0)
        model.predict(validation, verbose=0)
        # Batches are read ahead, or by several threads.
        is_exact = name not in {"workers", "half", "stopped", "seldom"}
        return log, *((losses, data.reads, validation.reads) if is_exact else ())

    expected = run(None)
    assert managed(flavour, tmp_path / "managed", run) == expected


PLACES: list[Any] = [(0, 2), (1, 0), ("validation", 1, 2), ("end", 1), (2, 3)]


@flavours
@pytest.mark.parametrize("places", [PLACES[:1], PLACES[1:2], PLACES])
def test_killed_sequences_go_on(flavour: Any, places: list[Any], tmp_path: Path) -> None:
    def run(_agreement: Any, at: Any = None) -> Any:
        def die() -> None:
            raise KilledError

        log: list[str] = []
        model = compiled(flavour)
        data, validation = (sequence(flavour, each, log) for each in ("data", "validation"))
        callbacks = [callback(flavour, log, data, at, die)]
        found = model.fit(data, validation_data=validation, callbacks=callbacks, **THREE_EPOCHS)
        return found.history, data.reads, validation.reads, data.noted

    expected = managed(flavour, tmp_path / "calm", run, checkpoint_steps=1)
    for place in places:
        with pytest.raises(KilledError):
            managed(
                flavour, tmp_path / "killed", functools.partial(run, at=place), checkpoint_steps=1
            )
    assert managed(flavour, tmp_path / "killed", run, checkpoint_steps=1) == expected


@flavours
def test_metrics_that_do_not_reset_go_on(flavour: Any, tmp_path: Path) -> None:
    class Seen(flavour.metrics.Sum):  # type: ignore[misc] # no types
        def update_state(self, values: Any, predicted: Any, sample_weight: Any = None) -> Any:
            return super().update_state(predicted)

        def reset_state(self) -> None: ...

    def run(_agreement: Any, at: Any = None) -> Any:
        def die() -> None:
            raise KilledError

        model = compiled(flavour, metrics=[Seen(name="seen")])
        callbacks = [callback(flavour, [], at=at, act=die)]
        options = {"validation_data": (X, Y), "callbacks": callbacks, **THREE_EPOCHS}
        return model.fit(X, Y, batch_size=16, **options).history

    expected = managed(flavour, tmp_path / "calm", run)
    with pytest.raises(KilledError):
        managed(flavour, tmp_path / "killed", functools.partial(run, at=(2, 1)))
    assert managed(flavour, tmp_path / "killed", run) == expected


@flavours
@pytest.mark.parametrize("place", [(1, 1), ("validation", 0, 2), ("validation", 1, 1)], ids=str)
def test_sequences_that_leave_go_on(flavour: Any, place: Any, tmp_path: Path) -> None:
    def run(agreement: Agreement, at: Any = None) -> Any:
        def leave() -> None:
            agreement.ask(TaskAction.LEAVE)

        log: list[str] = []
        model = compiled(flavour)
        data, validation = (sequence(flavour, each, log) for each in ("data", "validation"))
        callbacks = [callback(flavour, log, at=at, act=leave)]
        found = model.fit(data, validation_data=validation, callbacks=callbacks, **THREE_EPOCHS)
        return found.history, data.reads, validation.reads

    expected = managed(flavour, tmp_path / "calm", run)
    with pytest.raises(Terminated):
        managed(flavour, tmp_path / "left", functools.partial(run, at=place))
    assert managed(flavour, tmp_path / "left", run) == expected
