"""Measure how many modules common operations use, and check them against budget.toml.

    python scripts/trace_paths.py          # measure and check all paths
    python scripts/trace_paths.py help     # only this one

Each path runs in a process of its own. A module is a Python file under src/timonel.

rest-prediction
    `timonel.serve` with its defaults and a SavedModel of one operation answers a predict request of
    TensorFlow Serving's REST API: JSON rows, on a warm connection, head and body in one packet.
    ``modules``: modules whose code runs in the server until it is idle again. ``changes``: calls
    and returns that pass from one module to another, added up over its threads; code of other
    packages in between does not count. Periodic threads are left out. The result is the most
    frequent one of several requests. The model is given time to finish before the server asks for
    its outputs; otherwise the machine's load would decide whether the server has to be woken up.
conversion
    Modules other than packages' ``__init__.py``, which only re-export names, that are loaded after
    `timonel.convert` has converted 20 images.
worker
    Modules loaded in the worker of a plain local job when the user's script runs.
help
    Modules loaded by ``timonel --help``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from check_budget import PACKAGE, compare, read_budget, report

_PERIODIC = frozenset({"loader", "look", "trim"})
"""Threads of servers that work at intervals, not for a request."""
_WARM_UP, _MEASURED = 5, 9
_IDLE_S = 0.1
_SUBMIT, _MODEL_S = "ScheduledModel.submit", 0.05
"""The function that starts a model, and seconds for the model to finish."""
_AT_ONCE = 2
_MODEL = """
saved_model_schema_version: 1
meta_graphs {
  meta_info_def { tags: "serve" }
  graph_def {
    node {
      name: "x" op: "Placeholder"
      attr { key: "dtype" value { type: DT_FLOAT } }
      attr { key: "shape" value { shape { dim { size: -1 } dim { size: 2 } } } }
    }
    node { name: "y" op: "AddV2" input: "x" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
  }
  signature_def {
    key: "serving_default"
    value {
      inputs {
        key: "x"
        value { name: "x:0" dtype: DT_FLOAT tensor_shape { dim { size: -1 } dim { size: 2 } } }
      }
      outputs {
        key: "y"
        value { name: "y:0" dtype: DT_FLOAT tensor_shape { dim { size: -1 } dim { size: 2 } } }
      }
      method_name: "tensorflow/serving/predict"
    }
  }
}
"""
_BODY = b'{"instances": [[1.0, 2.0]]}'
_REQUEST = (
    b"POST /v1/models/twice:predict HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_SCRIPT = """
import sys
from pathlib import Path

Path({target!r}).write_text("\\n".join(sys.modules))
"""


def main(arguments: list[str]) -> int:
    """Measure paths and compare them with their budgets; return the exit code."""
    parser = argparse.ArgumentParser(description="Check how many modules common operations use.")
    parser.add_argument("path", nargs="?", choices=_PATHS, help="default: all")
    # In the current folder, for `_measure`; the result is the last line.
    parser.add_argument("--here", choices=_PATHS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        sys.stdout.write(f"\n{json.dumps(_PATHS[options.here]())}\n")
        return 0
    paths = [options.path] if options.path else list(_PATHS)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip(paths, pool.map(_measure, paths), strict=True))
    for path, counts in found.items():
        print(f"{path}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    budgets = read_budget("paths")
    chosen = {path: budgets[path] for path in budgets if options.path in (None, path)}
    return report(compare(_flat(chosen), _flat(found), "", "Use fewer modules"))


def _flat(paths: dict[str, dict[str, int]]) -> dict[str, int]:
    return {f"{path}.{name}": n for path, counts in paths.items() for name, n in counts.items()}


def _measure(path: str) -> dict[str, int]:
    """Measure a path in a new process, in an empty folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TIMONEL_")}
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **kept,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TIMONEL_MIRRORS": "none",
            # A zygote of another job may have loaded other modules.
            "TIMONEL_WARM_LINGER": "0",
            "XDG_RUNTIME_DIR": folder,
        }
        done = subprocess.run(
            [sys.executable, __file__, "--here", path],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"Cannot measure the path {path}:\n{done.stderr}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _conversion() -> dict[str, int]:
    image = importlib.import_module("PIL.Image")
    for number in range(20):
        path = Path("images", ("dark", "light")[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (8, 8), 12 * number).save(path)
    importlib.import_module("timonel").convert("images", "data")
    modules = [sys.modules[name] for name in _ours(sys.modules)]
    return {"modules": sum(not hasattr(module, "__path__") for module in modules)}


def _worker() -> dict[str, int]:
    target, script = Path("modules.txt").absolute(), Path("train.py")
    script.write_text(_SCRIPT.format(target=str(target)))
    importlib.import_module("timonel").train(script)
    return {"modules": len(_ours(target.read_text().splitlines()))}


def _help() -> dict[str, int]:
    sys.argv = ["timonel", "--help"]
    with contextlib.suppress(SystemExit):
        importlib.import_module("timonel.cli.entry").main()
    return {"modules": len(_ours(sys.modules))}


def _ours(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.split(".")[0] == "timonel"]


def _rest_prediction() -> dict[str, int]:
    log = Path("steps.tsv").absolute()
    log.touch()
    model = Path("twice", "1", "saved_model.pbtxt")
    model.parent.mkdir(parents=True)
    model.write_text(_MODEL)
    # Python imports this module at the start of each process.
    Path("sitecustomize.py").write_text(
        f"import trace_paths\n\ntrace_paths.install({str(log)!r})\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path.cwd()), str(Path(__file__).parent)))
    timonel = importlib.import_module("timonel")
    with timonel.serve("twice", workspace=".", rest_port=0, grpc_port=0, block=False) as server:
        url = urlsplit(server.rest_url)
        with socket.create_connection((url.hostname, url.port)) as connection:
            spans = [_answered(connection, log) for _ in range(_WARM_UP + _MEASURED)]
    steps = list(read_steps(log))
    (usage, _), *_ = Counter(
        usage_of(step for step in steps if began <= step.time_ns < ended)
        for began, ended in spans[_WARM_UP:]
    ).most_common()
    return usage._asdict()


def _answered(connection: socket.socket, log: Path) -> tuple[int, int]:
    """Send a request; return when it began and when the server was idle again."""
    began = time.monotonic_ns()
    connection.sendall(_REQUEST)
    answer = connection.recv(1 << 16)
    if not answer.endswith(b"[[2.0,4.0]]}"):
        raise SystemExit(f"The server cannot predict: {answer.decode()}")
    size = -1
    while size != (size := log.stat().st_size):
        time.sleep(_IDLE_S)
    return began, time.monotonic_ns()


class Step(NamedTuple):
    """A call or a return that reaches one of our modules.

    Args:
        time_ns: Its time on the monotonic clock, in nanoseconds.
        pid: The process.
        thread: The thread's name.
        module: The module's file.
    """

    time_ns: int
    pid: int
    thread: str
    module: str


class Usage(NamedTuple):
    """Distinct modules, and changes from one module to another."""

    modules: int
    changes: int


def usage_of(steps: Iterable[Step]) -> Usage:
    """Count the modules, and the changes within each thread."""
    modules: set[str] = set()
    changes = 0
    last: dict[tuple[int, str], str] = {}
    for step in steps:
        if step.thread in _PERIODIC:
            continue
        modules.add(step.module)
        thread = step.pid, step.thread
        changes += last.get(thread, step.module) != step.module
        last[thread] = step.module
    return Usage(len(modules), changes)


def tracer(root: Path, record: Callable[[str], object]) -> Callable[[FrameType, str, Any], None]:
    """Return a profile function that records the file which a call or a return reaches.

    Args:
        root: Folder of our modules; other files are not recorded.
        record: Called with the file's path.
    """
    prefix = f"{root}{os.sep}"

    def trace(frame: FrameType, event: str, _: Any) -> None:
        reached = frame if event == "call" else frame.f_back if event == "return" else None
        if reached is not None and reached.f_code.co_filename.startswith(prefix):
            record(reached.f_code.co_filename)

    return trace


def install(log: str) -> None:
    """Trace the processes that this one forks, such as a server that its zygote forks."""

    def record(module: str) -> None:
        step = (time.monotonic_ns(), os.getpid(), threading.current_thread().name, module)
        # Opened each time: a forked server closes what it inherits.
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, ("\t".join(map(str, step)) + "\n").encode())
        os.close(descriptor)

    trace_step = tracer(PACKAGE, record)

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        trace_step(frame, event, argument)
        if event == "return" and frame.f_code.co_qualname == _SUBMIT:
            time.sleep(_MODEL_S)

    def begin() -> None:
        sys.setprofile(trace)
        threading.setprofile(trace)

    # Not before: tracing would slow down the zygote's import of TensorFlow.
    os.register_at_fork(after_in_child=begin)


def read_steps(log: Path) -> Iterator[Step]:
    """Yield the steps that `install` has recorded."""
    for line in log.read_text().splitlines():
        time_ns, pid, thread, module = line.split("\t")
        yield Step(int(time_ns), int(pid), thread, module)


_PATHS = {
    "rest-prediction": _rest_prediction,
    "worker": _worker,
    "conversion": _conversion,
    "help": _help,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
