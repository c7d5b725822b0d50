"""Check TensorFlow in a child process with a time limit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timonel.checks import Check, Verdict
from timonel.processes.cores import usable_cores
from timonel.processes.zygote import zygote_environment
from timonel.training.worker.strategy.devices import threads as share_of_cores
from timonel.training.worker.strategy.devices import tpu_address
from timonel.units import format_seconds

AREA = "tensorflow"
TENSORFLOW = "2.21"
KERAS = ("3.15", "2.21")
_PROBE = "timonel.cli.doctor.probe"
_FAST_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


def checks(timeout_s: float) -> Iterator[Check]:
    """Load TensorFlow as a job's task would, and check the result."""
    try:
        facts = load_facts([sys.executable, "-P", "-m", _PROBE], timeout_s)
    except ProbeError as error:
        yield Check(AREA, "tensorflow", Verdict.FAIL, error.found, error.hint)
        return
    yield versions(facts)
    yield keras(facts)
    yield devices(facts)
    yield what_jobs_get(facts, usable_cores())
    yield zygote(facts)
    yield processor(facts, _cpu_flags())
    yield threads(os.environ.get("OMP_NUM_THREADS"), os.environ.get("TF_NUM_INTRAOP_THREADS"))


class ProbeError(Exception):
    """TensorFlow could not be loaded."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(found)
        self.found = found
        self.hint = hint


def load_facts(command: list[str], timeout_s: float) -> dict[str, Any]:
    """Run the probe and return its output."""
    # Same environment as a zygote's, so that the thread count is the same.
    environment = {**os.environ, **zygote_environment(os.environ), "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(
            f"did not load within {format_seconds(timeout_s)}", "is the disk or machine very busy?"
        ) from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        hint = "this build may need instructions that the processor lacks (AVX)"
        raise ProbeError(f"loading it ended with {name}", hint)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ProbeError(
            f"cannot be loaded: {reason[0]}", f"pip install 'tensorflow~={TENSORFLOW}'"
        )
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def versions(facts: dict[str, Any]) -> Check:
    """Check TensorFlow's version."""
    found = f"{facts['tensorflow']}, loads in {format_seconds(facts['import_s'])}"
    if not facts["tensorflow"].startswith(f"{TENSORFLOW}."):
        hint = f"tested with {TENSORFLOW}: pip install 'tensorflow~={TENSORFLOW}.0'"
        return Check(AREA, "tensorflow", Verdict.WARN, found, hint)
    return Check(AREA, "tensorflow", Verdict.OK, found)


def keras(facts: dict[str, Any]) -> Check:
    """Report which Keras ``tf.keras`` is, and whether distributed training supports it."""
    found = f"tf.keras is {facts['keras_package']} {facts['keras']}"
    if facts["legacy_asked"]:
        found += " (TF_USE_LEGACY_KERAS is set)"
    if not facts["keras"].startswith(KERAS):
        known = " or ".join(KERAS)
        hint = f"distributed fit works with {known} only: pip install 'keras~=3.15.0'"
        return Check(AREA, "keras", Verdict.WARN, found, hint)
    return Check(AREA, "keras", Verdict.OK, found)


def devices(facts: dict[str, Any]) -> Check:
    """List the devices visible to TensorFlow."""
    names = [name.removeprefix("/physical_device:") for name in facts["devices"]]
    gpus = [name for name in names if name.startswith("GPU")]
    found = ", ".join(names) or "none"
    if not gpus and Path("/proc/driver/nvidia/version").exists():
        hint = "there is an NVIDIA driver: pip install 'tensorflow[and-cuda]'"
        return Check(AREA, "devices", Verdict.WARN, found, hint)
    return Check(AREA, "devices", Verdict.OK, found)


def what_jobs_get(facts: dict[str, Any], cores: float = 1.0) -> Check:
    """Report devices and threads per process for 1, 2 and 4 workers."""
    gpus = sum("GPU" in name for name in facts["devices"])
    tpu = tpu_address()
    found = "; ".join(_share(workers, gpus, cores) for workers in (1, 2, 4))
    hint = None
    if tpu is not None:
        found = f"1 worker: the TPU {tpu}; {found.partition('; ')[2]}"
    if gpus > 1:
        hint = f"one worker on all GPUs: --devices-per-worker {gpus}"
    return Check(AREA, "a job gets", Verdict.NOTE if hint else Verdict.OK, found, hint)


def _share(workers: int, gpus: int, cores: float) -> str:
    who = "1 worker" if workers == 1 else f"{workers} workers"
    if gpus and gpus < workers:
        return f"{who}: too few GPUs"
    count = share_of_cores(cores, workers)
    words = f"{who}: a {'GPU' if gpus else 'CPU'}, {count} {'thread' if count == 1 else 'threads'}"
    return words if workers == 1 else f"{words} each"


def zygote(facts: dict[str, Any]) -> Check:
    """Report whether a zygote that has imported TensorFlow can fork tasks."""
    if facts["threads"] == 1:
        saved = format_seconds(facts["import_s"])
        return Check(AREA, "warm start", Verdict.OK, f"possible: saves {saved} for each task")
    found = f"not possible: importing TensorFlow leaves {facts['threads']} threads"
    hint = "tasks are started one by one; something imported with TensorFlow starts threads"
    return Check(AREA, "warm start", Verdict.NOTE, found, hint)


def processor(facts: dict[str, Any], flags: frozenset[str]) -> Check:
    """Report the processor's vector instructions and whether oneDNN is on."""
    present = [name for name in _FAST_FLAGS if name in flags]
    found = f"{' '.join(present) or 'no AVX2'}, oneDNN {'on' if facts['onednn'] else 'off'}"
    if not facts["onednn"]:
        hint = "TF_ENABLE_ONEDNN_OPTS=0 is set: without it convolutions are faster"
        return Check(AREA, "processor", Verdict.NOTE, found, hint)
    if flags and "avx2" not in flags:
        hint = "a processor with AVX2 trains several times faster"
        return Check(AREA, "processor", Verdict.NOTE, found, hint)
    return Check(AREA, "processor", Verdict.OK, found)


def threads(openmp: str | None, intra_op: str | None) -> Check:
    """Report whether environment variables limit TensorFlow's threads."""
    name = "OMP_NUM_THREADS" if openmp else "TF_NUM_INTRAOP_THREADS"
    value = openmp or intra_op
    if value and value.isdigit() and int(value) < len(os.sched_getaffinity(0)):
        hint = f"unset {name} to let TensorFlow use all cores"
        return Check(AREA, "threads", Verdict.NOTE, f"{name}={value}", hint)
    return Check(AREA, "threads", Verdict.OK, "not limited by the environment")


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()
