"""A runtime whose models fail or wait: ``saved_model.pb`` has the factor, delays and failures.

With ``counted``, a version adds a byte to the file ``computed-VERSION`` beside it for each request.
A value of ``deadly`` kills the process, after a byte was added to ``died-VERSION``.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

from tests.contracts.runtimes import FakeModel

from timonel.serving.runtimes.base import Runtime
from timonel.serving.status import Code, StatusError


class FaultyModel(FakeModel):
    def __init__(
        self,
        path: Path,
        factor: float,
        delay_s: float = 0.0,
        fail_every: int = 0,
        counted: bool = False,
        deadly: float | None = None,
    ) -> None:
        super().__init__(factor)
        count = path.with_name(f"computed-{path.name}")
        self._counter = count.open("ab", buffering=0) if counted else None
        self._deadly = deadly
        self._died = path.with_name(f"died-{path.name}")
        self._delay_s = delay_s
        self._fail_every = fail_every
        self._numbers = itertools.count(1)

    def run(self, signature, inputs, outputs=None):
        if self._counter is not None:
            self._counter.write(b".")
        if self._deadly is not None and self._deadly in inputs["x"]:
            with self._died.open("ab") as file:
                file.write(b".")
            os.abort()
        time.sleep(self._delay_s)
        if self._fail_every and next(self._numbers) % self._fail_every == 0:
            raise StatusError(Code.INTERNAL, "it fails on purpose")
        return super().run(signature, inputs, outputs)


class FaultyRuntime(Runtime):
    name = "faulty"

    def prepare(self) -> None:
        """Do nothing."""

    def load(self, path, settings):
        options = json.loads((path / "saved_model.pb").read_text())
        time.sleep(options.pop("load_s", 0))
        return FaultyModel(path, **options)
