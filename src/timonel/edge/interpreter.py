"""Run flatbuffers with LiteRT: outputs, latency and memory. Without TensorFlow.

``python -m timonel.edge.interpreter REQUEST ANSWER`` measures in a process of its own,
whose peak of memory is that of inference.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from timonel.edge.report import TensorFacts, Timing
from timonel.models.child import answer_request, end_with_parent
from timonel.models.flatbuffers import forget_state
from timonel.models.schema import StoredDocument

_SECONDS = 1.0
_FEWEST_RUNS = 30
_MOST_RUNS = 2000
_WARM_UP_RUNS = 5


class MeasureRequest(StoredDocument):
    """Request to measure a flatbuffer."""

    model: Path = Field(description="The flatbuffer.")
    threads: tuple[int, ...] = Field(description="Numbers of threads to measure.")


class Measured(StoredDocument):
    """Latency and memory of a flatbuffer."""

    timings: tuple[Timing, ...] = Field(description="Latency by number of threads.")
    peak_bytes: int = Field(description="Memory that loading and inference added to a process.")


class LiteModel:
    """A flatbuffer with its interpreter; for one thread.

    Args:
        model: The flatbuffer's content or file.
        threads: Threads that compute.
    """

    def __init__(self, model: bytes | Path, threads: int = 1) -> None:
        from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415 - takes 0.2 s

        source: dict[str, Any] = (
            {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
        )
        self._interpreter = Interpreter(num_threads=threads, **source)
        self._interpreter.allocate_tensors()
        self._signature = next(iter(self._interpreter.get_signature_list()))
        self._runner = self._interpreter.get_signature_runner(self._signature)

    @property
    def inputs(self) -> tuple[TensorFacts, ...]:
        """The inputs."""
        details: Mapping[str, Any] = self._runner.get_input_details()
        return tuple(_facts(name, each) for name, each in details.items())

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors, with those between layers."""
        return tuple(each["name"] for each in self._interpreter.get_tensor_details())

    @property
    def outputs(self) -> tuple[TensorFacts, ...]:
        """The outputs."""
        details: Mapping[str, Any] = self._runner.get_output_details()
        return tuple(_facts(name, each) for name, each in details.items())

    def run(self, inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return real outputs for real inputs; integers are converted."""
        found = self.call(self.encode(inputs))
        return {each.name: _to_real(found[each.name], each) for each in self.outputs}

    def encode(self, inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the model's own inputs for real ones."""
        return {each.name: _to_integers(inputs[each.name], each) for each in self.inputs}

    def call(self, encoded: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the model's own outputs for its own inputs."""
        forget_state(self._interpreter)
        outputs: dict[str, npt.NDArray[Any]] = self._runner(**encoded)
        return outputs


def measure(request: MeasureRequest) -> Measured:
    """Measure the latency of a flatbuffer on random inputs, and the memory it adds."""
    from ai_edge_litert import interpreter as _  # noqa: PLC0415, F401 - not the model's memory

    before = _peak_bytes()
    timings, peak = [], 0
    for threads in request.threads:
        model = LiteModel(request.model, threads)
        generator = np.random.default_rng(0)
        inputs = model.encode({each.name: generator.random(each.shape) for each in model.inputs})
        for _run in range(_WARM_UP_RUNS):
            model.call(inputs)
        times: list[float] = []
        end = time.perf_counter() + _SECONDS
        while len(times) < _FEWEST_RUNS or (len(times) < _MOST_RUNS and time.perf_counter() < end):
            started = time.perf_counter()
            model.call(inputs)
            times.append((time.perf_counter() - started) * 1000)
        p50, p99 = np.percentile(times, [50, 99])
        timings.append(Timing(threads=threads, runs=len(times), p50_ms=p50, p99_ms=p99))
        peak = peak or _peak_bytes() - before
    return Measured(timings=tuple(timings), peak_bytes=peak)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _facts(name: str, details: Mapping[str, Any]) -> TensorFacts:
    scale, zero_point = details["quantization"]
    return TensorFacts(
        name=name,
        dtype=np.dtype(details["dtype"]).name,
        shape=tuple(int(size) for size in details["shape"]),
        scale=float(scale) or None,
        zero_point=int(zero_point) if scale else None,
    )


def _to_integers(value: Any, facts: TensorFacts) -> npt.NDArray[Any]:
    array = np.asarray(value)
    dtype = np.dtype(facts.dtype)
    if facts.scale is None or facts.zero_point is None:
        return array.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.round(array / facts.scale) + facts.zero_point, limits.min, limits.max).astype(
        dtype
    )


def _to_real(array: npt.NDArray[Any], facts: TensorFacts) -> npt.NDArray[Any]:
    if facts.scale is None or facts.zero_point is None:
        return array
    return (array.astype(np.float32) - facts.zero_point) * np.float32(facts.scale)


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    return answer_request(arguments, MeasureRequest, measure)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
