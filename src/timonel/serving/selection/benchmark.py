"""Compare loaded models on the same requests, and choose the fastest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from timonel.models.runtime_choice import Choice, Measurement
from timonel.serving.batching.scheduling import is_open
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.saved_model import Sample, row_shapes
from timonel.serving.settings.batching import cores
from timonel.serving.signature import Array, Signature
from timonel.serving.status import invalid_argument

BATCHES = (1, 8, 32)
_ROUNDS = 5
_ROUND_S = 0.05
_MOST_CALLS = 100
TOLERANCE = 1e-4
"""Allowed difference from TensorFlow's answer, relative to the largest number in the same row."""
_GAIN = 1.05
"""Smaller gains, below a twentieth, are within the noise of measurements."""
_NAMES: Mapping[Choice, str] = {"litert": "LiteRT", "frozen": "TensorFlow without variables"}

Inputs = Mapping[str, Array]


def compared(theirs: LoadedModel, ours: LoadedModel, samples: Sequence[Sample]) -> list[float]:
    """Return the difference of each output of ``ours`` from that of ``theirs``.

    Compares requests as they are, and in the batch sizes to be measured.
    """
    found = []
    for signature in _callable(theirs):
        inputs = _inputs_for(signature, samples)
        for each in (*inputs, *_batches(signature, inputs).values()):
            right = theirs.run(signature.name, each)
            answer = ours.run(signature.name, each)
            found += [difference(answer[name], right[name]) for name in signature.outputs]
    return found


def measured(
    models: Mapping[Choice, LoadedModel], samples: Sequence[Sample]
) -> Iterator[Measurement]:
    """Yield all models' times, with one caller and one per core."""
    for signature in _callable(models["tensorflow"]):
        inputs = _inputs_for(signature, samples)
        batches = _batches(signature, inputs) or {_rows(inputs[0]): inputs[0]}
        for batch, each in batches.items():
            for callers in sorted({1, cores()}):
                times: dict[Choice, list[float]] = {runtime: [] for runtime in models}
                for _ in range(_ROUNDS):
                    # Alternate between models, so that other load on the machine affects all of
                    # them.
                    for runtime, model in models.items():
                        times[runtime].append(_round(model, signature.name, each, callers))
                for runtime, seconds in times.items():
                    yield Measurement(
                        runtime=runtime,
                        signature=signature.name,
                        batch=batch,
                        callers=callers,
                        milliseconds=1e3 * statistics.median(seconds),
                    )


def difference(ours: Array, theirs: Array) -> float:
    """Return the difference of an output from TensorFlow's, relative to its rows.

    Values other than floating-point numbers must be equal. Infinity means not comparable.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if ours.size == 0:
        return 0.0
    if ours.dtype == object or not np.issubdtype(ours.dtype, np.inexact):
        return 0.0 if bool(np.array_equal(ours, theirs)) else float("inf")
    if bool((np.isnan(ours) != np.isnan(theirs)).any()):
        return float("inf")
    ours, theirs = (_as_rows(np.where(np.isnan(each), 0, each)) for each in (ours, theirs))
    same = ours == theirs
    finite = np.where(np.isfinite(theirs), np.abs(theirs), 0)
    scale = np.maximum(finite.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(same, 0.0, np.abs(ours - theirs) / scale)
    return float(away.max())


def decide(
    differences: Mapping[Choice, Sequence[float]],
    impossible: Mapping[Choice, str],
    measurements: Sequence[Measurement],
) -> tuple[Choice, str]:
    """Return the fastest choice with the same answers, and the reason.

    ``measurements`` are for the same signatures, batch sizes and numbers of callers.
    """
    reasons = {
        choice: _objection(choice, differences.get(choice, ()), measurements) for choice in _NAMES
    }
    reasons |= impossible
    possible = [choice for choice in _NAMES if reasons[choice] is None]
    best = max(
        possible,
        key=lambda choice: statistics.geometric_mean(_ratios(choice, measurements)),
        default=None,
    )
    if best is None:
        return "tensorflow", "; ".join(dict.fromkeys(str(reasons[choice]) for choice in _NAMES))
    ratios = _ratios(best, measurements)
    gain = f"{_NAMES[best]} is {min(ratios):.1f} to {max(ratios):.1f} times as fast"
    litert = reasons["litert"]
    return best, gain if litert is None else f"{gain}; {litert}"


def _callable(model: LoadedModel) -> list[Signature]:
    """Return the signatures that clients can call."""
    return [each for each in model.signatures.values() if each.inputs and each.outputs]


def _inputs_for(signature: Signature, samples: Sequence[Sample]) -> list[Inputs]:
    """Return a signature's samples, else those with the same inputs."""
    own = [inputs for name, inputs in samples if name == signature.name]
    fitting = own or [inputs for _, inputs in samples if inputs.keys() == signature.inputs.keys()]
    if not fitting:
        raise invalid_argument(f"there are no requests to compare signature {signature.name} on")
    return fitting


def _batches(signature: Signature, samples: Sequence[Inputs]) -> dict[int, Inputs]:
    """Return batches of sample rows by size; empty without batching."""
    same = [each for each in samples if row_shapes(each) == row_shapes(samples[0])]
    if not is_open(signature) or any(array.ndim == 0 for array in same[0].values()):
        return {}
    together = {name: np.concatenate([each[name] for each in same]) for name in same[0]}
    if not _rows(together):
        return {}
    return {
        size: {name: _first(array, size) for name, array in together.items()} for size in BATCHES
    }


def _first(array: Array, rows: int) -> Array:
    """Return the first ``rows`` rows of an array, repeated if necessary."""
    return np.concatenate([array] * -(-rows // len(array)))[:rows]


def _rows(inputs: Inputs) -> int:
    array = next(iter(inputs.values()))
    return len(array) if array.ndim else 1


def _round(model: LoadedModel, signature: str, inputs: Inputs, callers: int) -> float:
    """Return the seconds per request with ``callers`` concurrent threads."""

    def call(until: float) -> int:
        calls = 0
        while calls < _MOST_CALLS and (not calls or time.perf_counter() < until):
            model.run(signature, inputs)
            calls += 1
        return calls

    began = time.perf_counter()
    if callers == 1:
        return _per_call(began, call(began + _ROUND_S))
    with ThreadPoolExecutor(callers) as pool:
        return _per_call(began, sum(pool.map(call, [began + _ROUND_S] * callers)))


def _per_call(began: float, calls: int) -> float:
    return (time.perf_counter() - began) / calls


def _objection(
    choice: Choice, differences: Sequence[float], measurements: Sequence[Measurement]
) -> str | None:
    """Return why a choice is not better than TensorFlow, or None."""
    worst = max(differences, default=None)
    if worst is None:
        return "there are no answers to compare"
    if not worst <= TOLERANCE:
        return f"answers of {_NAMES[choice]} differ by {worst:.1e} (at most {TOLERANCE:g})"
    ratios = _ratios(choice, measurements)
    if not ratios:
        return "nothing was measured"
    if min(ratios) < _GAIN:
        return f"{_NAMES[choice]} is {min(ratios):.2f} to {max(ratios):.2f} times as fast"
    return None


def _ratios(choice: Choice, measurements: Sequence[Measurement]) -> list[float]:
    """Return TensorFlow's time divided by that of another choice, for each measurement."""
    times: dict[Choice, dict[tuple[str, int, int], float]] = {"tensorflow": {}, choice: {}}
    for each in measurements:
        what = (each.signature, each.batch, each.callers)
        times.setdefault(each.runtime, {})[what] = each.milliseconds
    ours = times[choice]
    return [theirs / ours[what] for what, theirs in times["tensorflow"].items() if what in ours]


def _as_rows(array: Array) -> Array:
    """Return an array as rows of wide numbers, to avoid overflow."""
    is_complex = np.issubdtype(array.dtype, np.complexfloating)
    wide: Array = array.astype(np.complex128 if is_complex else np.float64)
    return wide.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
