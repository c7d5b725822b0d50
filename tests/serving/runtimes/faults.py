"""A runtime whose model does what its input says: crash, hang, leak, answer. Imported by name."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import numpy as np

from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from timonel.serving.status import Code, StatusError

REFERENCE = "tests.serving.runtimes.faults:FaultyRuntime"


class FaultyModel(LoadedModel):
    """Calls the method named by ``do`` with ``x``."""

    def __init__(self, path):
        self._path = path
        self._two = threading.Barrier(2)
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                DEFAULT_SIGNATURE,
                inputs={
                    "do": TensorSpec("do:0", "DT_STRING", ()),
                    "x": TensorSpec("x:0", "DT_FLOAT", None),
                },
                outputs={"y": TensorSpec("y:0", "DT_FLOAT", (-1,))},
                defaults={"x": np.arange(3, dtype=np.float32), "do": np.array(b"double", object)},
            )
        }

    def run(self, signature, inputs, outputs=None):
        return {"y": np.asarray(getattr(self, inputs["do"].item().decode())(inputs["x"]))}

    def close(self):
        (self._path / "closed").touch()

    def double(self, x):
        return 2 * x

    def pid(self, x):
        return np.array(os.getpid())

    def echo(self, x):
        return x

    def meet(self, x):
        """Return once another call is in progress."""
        return np.array(self._two.wait(60) >= 0)

    def sleep(self, x):
        time.sleep(float(x.flat[0]))
        return x

    def segfault(self, x):
        time.sleep(0.1)
        ctypes.string_at(0)

    def abort(self, x):
        time.sleep(0.1)
        os.abort()

    def kill(self, x):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    def exit(self, x):
        os._exit(3)

    def hang(self, x):
        """Hold the interpreter's lock, as a kernel may that never comes back."""
        (self._path / "busy").touch()
        ctypes.PyDLL(None).usleep(60_000_000)

    def wait(self, x):
        """Never return, but let others run."""
        (self._path / "busy").touch()
        threading.Event().wait()

    def refuse(self, x):
        raise StatusError(Code.INVALID_ARGUMENT, "no thanks")

    def fail(self, x):
        raise ZeroDivisionError("oh")

    def wrong_type(self, x):
        return np.array(["text"])


class FaultyRuntime(Runtime):
    name = "faulty"

    def load(self, path, settings):
        text = (path / "saved_model.pb").read_text()
        if text == "crash":
            os.abort()
        if text == "hang":
            (path / "loading").touch()
            threading.Event().wait()
        if text == "refuse":
            raise StatusError(Code.DATA_LOSS, "a damaged model")
        if text == "raise":
            raise ValueError("a defect")
        return FaultyModel(path)


class DoublerModel(LoadedModel):
    """What the contract asks for, in numpy."""

    def __init__(self):
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                DEFAULT_SIGNATURE,
                inputs={"x": TensorSpec("x:0", "DT_FLOAT", (-1, 2))},
                outputs={
                    "doubled": TensorSpec("doubled:0", "DT_FLOAT", (-1, 2)),
                    "text": TensorSpec("text:0", "DT_STRING", (-1,)),
                },
            )
        }

    def run(self, signature, inputs, outputs=None):
        x = inputs["x"]
        if x.dtype != np.float32:
            raise StatusError(Code.INVALID_ARGUMENT, f"expected float32, got {x.dtype}")
        text = np.empty(len(x), object)
        text[:] = [str(row).encode() for row in x]
        found = {"doubled": 2 * x, "text": text}
        return {name: found[name] for name in outputs or found}

    def close(self):
        pass


class DoublerRuntime(Runtime):
    name = "doubler"

    def load(self, path, settings):
        if not (path / "saved_model.pb").exists():
            raise StatusError(Code.NOT_FOUND, f"no model in {path}")
        return DoublerModel()
