"""Two loaded models on the same requests: how far apart they are, and how long they take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from timonel.serving.batching.check import is_open
from timonel.serving.batching_settings import cores
from timonel.serving.optimizing.decision import difference
from timonel.serving.runtimes.base import Array, LoadedModel, Signature
from timonel.serving.runtimes.evidence import Choice, Measurement
from timonel.serving.samples import Sample
from timonel.serving.status import invalid_argument

BATCHES = (1, 8, 32)
_ROUNDS = 5
_ROUND_S = 0.05
_MOST_CALLS = 100

Inputs = Mapping[str, Array]


def compared(theirs: LoadedModel, ours: LoadedModel, samples: Sequence[Sample]) -> list[float]:
    """Return how far each output of ``ours`` is from that of ``theirs``.

    Requests are compared as they are, and in the sizes of batches that are measured.

    Raises:
        StatusError: There is nothing to compare a signature on, or it fails.
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
    """Yield how long all take: alone, and with as many requests at a time as there are cores."""
    for signature in _callable(models["tensorflow"]):
        inputs = _inputs_for(signature, samples)
        batches = _batches(signature, inputs) or {_rows(inputs[0]): inputs[0]}
        for batch, each in batches.items():
            for callers in sorted({1, cores()}):
                times: dict[Choice, list[float]] = {runtime: [] for runtime in models}
                for _ in range(_ROUNDS):
                    # In turn, so that what else the machine does falls on all.
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


def _callable(model: LoadedModel) -> list[Signature]:
    """Return the signatures that clients can call."""
    return [each for each in model.signatures.values() if each.inputs and each.outputs]


def _inputs_for(signature: Signature, samples: Sequence[Sample]) -> list[Inputs]:
    """Return the samples that a signature takes, its own or those of one with the same inputs."""
    own = [inputs for name, inputs in samples if name == signature.name]
    fitting = own or [inputs for _, inputs in samples if inputs.keys() == signature.inputs.keys()]
    if not fitting:
        raise invalid_argument(f"there are no requests to compare signature {signature.name} on")
    return fitting


def _batches(signature: Signature, samples: Sequence[Inputs]) -> dict[int, Inputs]:
    """Return batches of rows of the samples, by size; none if the model takes no batches."""
    same = [each for each in samples if _row_shapes(each) == _row_shapes(samples[0])]
    if not is_open(signature) or any(array.ndim == 0 for array in same[0].values()):
        return {}
    together = {name: np.concatenate([each[name] for each in same]) for name in same[0]}
    if not _rows(together):
        return {}
    return {
        size: {name: _first(array, size) for name, array in together.items()} for size in BATCHES
    }


def _first(array: Array, rows: int) -> Array:
    """Return so many rows of an array, which is repeated where it has fewer."""
    return np.concatenate([array] * -(-rows // len(array)))[:rows]


def _rows(inputs: Inputs) -> int:
    array = next(iter(inputs.values()))
    return len(array) if array.ndim else 1


def _row_shapes(inputs: Inputs) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in inputs.items()}


def _round(model: LoadedModel, signature: str, inputs: Inputs, callers: int) -> float:
    """Return the seconds a request takes, of some that ``callers`` threads send at a time."""

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
