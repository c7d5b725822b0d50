"""What no server can pass: a model called in this process, in the batches that suit it best.

Prints a line of JSON when it is ready. For each line of input, a number of seconds, it computes
for that long and prints a line with the requests/s that this would have answered.

usage: serving_bound.py {tensorflow,litert} MODEL EXAMPLE [--op-threads N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np

Call = Callable[[], object]
_MOST_BYTES = 10 * 2**20
_SCAN_S = 0.5
_FINALISTS, _WINDOWS = 4, 5
_WAYS = tuple(itertools.product((1, 2), (1, 2, 4, 8, 16, 32, 64)))


@dataclass(frozen=True)
class Way:
    """A way to compute: so many threads at once, each with batches of so many requests."""

    threads: int
    requests: int
    calls: list[Call]

    def rate(self, seconds: float) -> float:
        """Return the requests/s that were computed."""
        counts = [0] * self.threads
        begin = time.perf_counter()

        def work(thread: int) -> None:
            while time.perf_counter() - begin < seconds:
                self.calls[thread]()
                counts[thread] += 1

        threads = [threading.Thread(target=work, args=(at,)) for at in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) * self.requests / (time.perf_counter() - begin)


def main() -> None:
    """Find the best way, then compute as told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runtime", choices=("tensorflow", "litert"))
    parser.add_argument("model", type=Path)
    parser.add_argument("example", type=Path)
    parser.add_argument("--op-threads", type=int, help="threads of an operation; else the best")
    parser.add_argument("--way", type=int, nargs=2, metavar=("THREADS", "REQUESTS"))
    parser.add_argument("--scan", action="store_true", help="print the best way, and end")
    asked = parser.parse_args()
    if asked.runtime == "tensorflow" and asked.op_threads is None:
        become_best()
    with np.load(asked.example, allow_pickle=True) as arrays:
        x = arrays["x"]
    if asked.runtime == "litert":
        make = litert(asked.model)
    else:
        make = tensorflow(asked.model, asked.op_threads)
    ways = [
        Way(threads, requests, make(np.concatenate([x] * requests), threads))
        for threads, requests in ([asked.way] if asked.way else _WAYS)
        if requests == 1 or requests * _size(x) <= _MOST_BYTES
    ]
    for way in ways:
        for call in way.calls:
            call()  # warm
    best, rate = fastest(ways)
    found = {"threads": best.threads, "requests": best.requests, "op_threads": asked.op_threads}
    if asked.scan:
        print(json.dumps({**found, "rate": rate}))
        return
    print(json.dumps(found), flush=True)
    for line in sys.stdin:
        print(json.dumps({"rate": best.rate(float(line))}), flush=True)


def fastest(ways: list[Way]) -> tuple[Way, float]:
    """Return the fastest way and its rate: the median of windows that the best ones have in turn.

    One short window says little where a call takes longer than it, or others use the machine.
    """
    for windows, left in ((1, _FINALISTS), (_WINDOWS, 1)):
        rates: list[list[float]] = [[] for _ in ways]
        for _ in range(windows):
            for each, way in zip(rates, ways, strict=True):
                each.append(way.rate(_SCAN_S))
        ranked = sorted(zip(map(statistics.median, rates), ways, strict=True),
                        key=lambda found: found[0], reverse=True)  # fmt: skip
        ways = [way for _, way in ranked[:left]]
    return ranked[0][1], ranked[0][0]


def become_best() -> None:
    """Go on as a process in which TensorFlow's operations have as many threads as suits them.

    A process has these threads once: two settings cannot be compared in one.
    """
    me = [sys.executable, *sys.argv]
    found = []
    for op_threads in (0, 1):
        scan = [*me, "--op-threads", str(op_threads), "--scan"]
        done = subprocess.run(scan, stdout=subprocess.PIPE, check=True)
        found.append(json.loads(done.stdout))
    best = max(found, key=lambda each: each["rate"])
    way = ["--way", str(best["threads"]), str(best["requests"])]
    os.execv(sys.executable, [*me, "--op-threads", str(best["op_threads"]), *way])


def tensorflow(folder: Path, op_threads: int) -> Callable[[np.ndarray, int], list[Call]]:
    """Return what makes calls of a SavedModel: session callables, the fastest that there are."""
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=op_threads)
    session = v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        loaded = v1.saved_model.loader.load(session, ["serve"], str(folder))
    signature = loaded.signature_def["serving_default"]
    options = config_pb2.CallableOptions(
        feed=[signature.inputs["x"].name], fetch=[signature.outputs["y"].name]
    )
    function = session._make_callable_from_options(options)
    return lambda x, threads: [lambda: function(x)] * threads


def litert(file: Path) -> Callable[[np.ndarray, int], list[Call]]:
    """Return what makes calls of a LiteRT file: an interpreter for each thread."""
    from ai_edge_litert.interpreter import Interpreter

    def make(x: np.ndarray, threads: int) -> list[Call]:
        return [_interpreter_call(Interpreter(str(file), num_threads=2 // threads), x)
                for _ in range(threads)]  # fmt: skip

    return make


def _interpreter_call(interpreter: object, x: np.ndarray) -> Call:
    index = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(index, x.shape)
    interpreter.allocate_tensors()
    output = interpreter.get_output_details()[0]["index"]

    def call() -> object:
        interpreter.set_tensor(index, x)
        interpreter.invoke()
        return interpreter.get_tensor(output)

    return call


def _size(x: np.ndarray) -> int:
    return sum(map(len, x)) if x.dtype == object else x.nbytes


if __name__ == "__main__":
    main()
