"""A model of every type without TensorFlow, and what it is served by."""

from __future__ import annotations

import numpy as np

from timonel.serving.batching.scheduling import scheduled
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.protocols.v2.tensors import NUMPY_OF
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError

DTYPES = {
    "BOOL": "DT_BOOL",
    "BYTES": "DT_STRING",
    "FP16": "DT_HALF",
    "BF16": "DT_BFLOAT16",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    **{name: f"DT_{name}" for name in NUMPY_OF if "INT" in name},
}


def _tensor(name, dtype, shape=(-1,)):
    return TensorSpec(f"{name}:0", dtype, shape)


class Echo(LoadedModel):
    """Gives back what it gets: the signature of each type is called as the type is.

    The default one doubles ``x``, and adds ``k``, which may be left out; negative numbers make it
    fail.
    """

    platform = "echo_all"

    def __init__(self):
        self.signatures = {
            "serving_default": Signature(
                "serving_default",
                {"x": _tensor("x", "DT_FLOAT", (-1, 2)), "k": _tensor("k", "DT_FLOAT", ())},
                {"y": _tensor("y", "DT_FLOAT", (-1, 2)), "text": _tensor("text", "DT_STRING")},
                defaults={"k": np.array(1, np.float32)},
            ),
            "complex": Signature("complex", {}, {"y": _tensor("y", "DT_COMPLEX64")}),
            **{
                datatype: Signature(
                    datatype, {"x": _tensor("x", dtype, None)}, {"y": _tensor("y", dtype, None)}
                )
                for datatype, dtype in DTYPES.items()
            },
        }

    def run(self, signature, inputs, outputs=None):
        if signature == "complex":
            return {"y": np.zeros(1, np.complex64)}
        if signature != "serving_default":
            return {"y": inputs["x"]}
        if (inputs["x"] < 0).any():
            raise StatusError(Code.INVALID_ARGUMENT, "expected no negative numbers")
        y = inputs["x"] * 2 + inputs["k"]
        every = {"y": y, "text": np.array([b"\xff"] * len(y), object)}
        return {name: every[name] for name in outputs or every}

    def close(self):
        pass


def catalogue_of(model):
    """Versions 3, which is stable, and 4 of ``m``; 5 is loading, 6 failed; ``n`` has none."""
    catalogue = Catalogue({"m": {"stable": 3, "gone": 9}, "n": {}})
    serving = tuple(VersionStatus(number, VersionState.AVAILABLE) for number in (3, 4))
    others = (
        VersionStatus(5, VersionState.LOADING),
        VersionStatus(6, VersionState.END, Code.DATA_LOSS, "damaged"),
    )
    catalogue.publish(
        "m",
        {number: Servable("m", number, scheduled(model)) for number in (3, 4)},
        serving + others,
    )
    return catalogue
