"""A runtime whose models fail or wait: ``saved_model.pb`` has the factor, delay and failures."""

from __future__ import annotations

import itertools
import json
import time

from timonel.serving.runtimes.base import Runtime
from timonel.serving.status import Code, StatusError
from timonel.testing.runtimes import FakeModel


class FaultyModel(FakeModel):
    def __init__(self, factor: float, delay_s: float = 0.0, fail_every: int = 0) -> None:
        super().__init__(factor)
        self._delay_s = delay_s
        self._fail_every = fail_every
        self._numbers = itertools.count(1)

    def run(self, signature, inputs, outputs=None):
        time.sleep(self._delay_s)
        if self._fail_every and next(self._numbers) % self._fail_every == 0:
            raise StatusError(Code.INTERNAL, "it fails on purpose")
        return super().run(signature, inputs, outputs)


class FaultyRuntime(Runtime):
    name = "faulty"

    def prepare(self) -> None:
        """Do nothing."""

    def load(self, path, settings):
        return FaultyModel(**json.loads((path / "saved_model.pb").read_text()))
