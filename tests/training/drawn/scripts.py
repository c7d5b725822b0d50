"""Training scripts put together at random from kinds of state, models, loops and modes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.training.drawn.frame import BEGIN, CALLS, DATA, END, FIT, LOOPS, ROWS, STEPS
from tests.training.drawn.models import MODELS
from tests.training.drawn.states import STATES

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
_UNLISTED = frozenset({"layer_variable", "seed_generator"})
"""States that a step of Keras 3 changes in variables that no layer lists."""
_NOT_IN_TF_KERAS = frozenset({"seed_generator"})
_SHARED = frozenset({"shared_dataset", "shared_sequence", "steps", "validated_dataset"})
"""Data that all calls of a script share, and that differ from one call to the next."""
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
        # Workers draw from one generator on a parameter server, in the order in which they come.
        is_a_race = self.mode == "synchronous" and "generator" in self.states
        return self.mode != "asynchronous" and self.warning is None and not is_a_race

    @property
    def resume_refusal(self) -> str | None:
        """Part of the message with which a resume may be refused; None if it goes on."""
        return {
            "compile": "a callback has compiled the model",
            "freeze": "a callback has changed which variables are trained",
        }.get(self.loop)

    @property
    def warning(self) -> str | None:
        """Part of the warning with which numbers may differ after a resume."""
        if self.loop == "inner" and self.data in _SHARED:
            return "data that calls of fit in callbacks share"
        if self.data == "steps" and len(CALLS[self.loop]) > 1:
            return "the order of a repeated pipeline that calls of fit share"
        return None

    @property
    def refusal(self) -> str | None:
        """Part of the message with which the job is refused; None if it runs."""
        if self.keras == "tf_keras" and self.model == "stateful" and self.mode != "one":
            return "Stateful RNNs (created with `stateful=True`) are not yet supported with"
        is_replicated = self.mode in {"devices", "workers"}
        if is_replicated and self.keras == "tf_keras" and "metric" in self.states:
            return "SyncOnReadVariable does not support `assign_add` in cross-replica context"
        if self.mode not in _SERVED:
            return None
        # Models are refused before the first step, and what callbacks do after it.
        if self.model in _REFUSED_BY_SERVERS:
            return _REFUSED_BY_SERVERS[self.model]
        # A layer of tf-keras lists the variable as its own.
        if not _UNLISTED.isdisjoint(self.states) and self.keras == "keras":
            return "the train step assigns a variable that the model does not list"
        return _REFUSED_BY_SERVERS.get(self.loop)

    @property
    def script(self) -> str:
        """The script's text."""
        is_legacy = self.keras == "tf_keras"
        sequence = "keras.utils.Sequence" if is_legacy else "keras.utils.PyDataset"
        parts = [
            BEGIN.format(keras="import tf_keras as keras" if is_legacy else "import keras"),
            *(STATES[name] for name in self.states),
            ROWS,
            DATA[self.data].replace("SEQUENCE", sequence),
            MODELS[self.model],
            FIT,
            LOOPS[self.loop],
            END,
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
        for label, epochs in CALLS[loop].items()
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
