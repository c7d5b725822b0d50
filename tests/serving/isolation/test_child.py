from __future__ import annotations

import numpy as np

from tests.serving.freeing import freed_by_reference_counts
from timonel.serving.isolation.child import _RequestLoop
from timonel.serving.isolation.packets import FrameKind, Message
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.threaded import ThreadedModel
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError


class Refusing(LoadedModel):
    def __init__(self):
        spec = TensorSpec("x", "DT_FLOAT", (-1,))
        self.signatures = {"s": Signature("s", {"x": spec}, {"x": spec})}

    def run(self, signature, inputs, outputs=None):
        raise StatusError(Code.INVALID_ARGUMENT, "refused")

    def close(self):
        pass


class Connection:
    """Keeps what is posted; the real one needs a process at its other end."""

    def __init__(self):
        self.posted = []

    def post(self, kind, number, fields, arrays=None, *, later=False):
        self.posted.append((kind, number, fields))


def test_a_refused_request_is_freed_without_garbage_collection():
    link, model = Connection(), ThreadedModel(Refusing(), threads=1)
    requests = _RequestLoop(link, model)
    with freed_by_reference_counts(np.ones(3, np.float32)) as inputs:
        requests._handle(Message(FrameKind.REQUEST, 7, ["s", None, None], dict(inputs)))
        model.close()
    assert [(kind, number) for kind, number, _ in link.posted] == [(FrameKind.ERROR, 7)]
