"""What the benchmarks' scripts share: turns that jobs take, and a log of their steps.

Two jobs that are compared run at the same time, but only one of them at a time trains: each waits
for its turn at the beginning of a step. So whatever else the machine does disturbs both alike, and
a ratio of two turns that follow each other says more than one of two whole runs.
"""

import json
import os
import time
from pathlib import Path

_POLL_S = 0.005


class Turns:
    """Waits for the turns of one of the jobs. Made in each process of it; the first one leads.

    Args:
        folder: Where the number of the present turn is, and where the times are written to.
        side: Which of the jobs this is, counting from 0.
        sides: How many jobs there are.
        steps: Steps of a turn.
        rounds: Turns of each job.
        first: Steps of its first turn.
    """

    def __init__(self, folder, side, sides, steps, rounds, first=None):
        self._folder, self._side, self._sides = Path(folder), side, sides
        self._lengths = [first or steps, *[steps] * (rounds - 1)]
        self._leads = leads()
        self._times = []
        self._begun = None

    @property
    def total(self):
        """The steps of all turns together."""
        return sum(self._lengths)

    def step_begins(self):
        """Note that the step before has ended; wait where the turn has, too."""
        self._step_ended()
        if self._begun is None:
            self._wait()
        self._begun = time.perf_counter()

    def all_done(self):
        """End the last turn, and keep still until all jobs have had theirs."""
        self._step_ended()
        self._await_turn(self._sides * len(self._lengths))

    def _wait(self):
        if not self._times:
            (self._folder / f"here-{self._side}-{os.getpid()}").touch()
        self._await_turn(self._side + self._sides * len(self._times))
        self._times.append([])

    def _step_ended(self):
        if self._begun is None:
            return
        present = self._times[-1]
        present.append(time.perf_counter() - self._begun)
        if len(present) == self._lengths[len(self._times) - 1]:
            self._begun = None
            self._turn_ended()

    def _turn_ended(self):
        if not self._leads:
            return
        _put(self._folder / f"times-{self._side}.json", json.dumps(self._times))
        turn = self._side + self._sides * (len(self._times) - 1)
        _put(self._folder / "turn", str(turn + 1))

    def _await_turn(self, number):
        path = self._folder / "turn"
        while not path.exists() or int(path.read_text()) < number:
            time.sleep(_POLL_S)


def leads():
    """Whether this process is the first of its job."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return True
    kind, index = config["task"]["type"], int(config["task"]["index"])
    return kind == "chief" or (index == 0 and "chief" not in config["cluster"])


def callbacks(keras, options, model):
    """Return what ``fit`` is given: turns, and a log of steps, where the options ask for them."""
    found = []
    if options.turns:
        found.append(_turns_callback(keras, Turns(**json.loads(options.turns))))
    if options.step_log and leads():
        found.append(_log_callback(keras, Path(options.step_log), model))
    return found


def add_options(parser):
    """Add the flags of these to a script's."""
    parser.add_argument("--turns", help="JSON: what Turns takes")
    parser.add_argument(
        "--step-log", help="a file for a line per step: time, number, loss; number 0: fit begins"
    )


def _turns_callback(keras, turns):
    class TakeTurns(keras.callbacks.Callback):
        def on_train_batch_begin(self, *_, **__):
            turns.step_begins()

        def on_train_end(self, *_, **__):
            turns.all_done()

    return TakeTurns()


def _log_callback(keras, path, model):
    class LogSteps(keras.callbacks.Callback):
        def on_train_begin(self, *_, **__):
            with path.open("a") as log:
                log.write(f"{time.time():.6f} 0 nan\n")

        def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002 - Keras' signature
            number, loss = int(model.optimizer.iterations.numpy()), float((logs or {})["loss"])
            with path.open("a") as log:
                log.write(f"{time.time():.6f} {number} {loss!r}\n")

    return LogSteps()


def _put(path, text):
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.replace(path)
