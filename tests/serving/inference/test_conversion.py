from __future__ import annotations

import numpy as np

from timonel.serving.inference.conversion import fill_result, metadata_response
from timonel.serving.manager.catalogue import Metadata
from timonel.serving.protocols.tfs_rest.api import metadata_view
from timonel.serving.protos.messages import classification_pb2
from timonel.serving.signature import Signature, TensorSpec

METADATA = Metadata(
    "m",
    7,
    {
        "serving_default": Signature(
            "serving_default",
            inputs={
                "x": TensorSpec("x:0", "DT_FLOAT", (-1, 2)),
                "k": TensorSpec("k:0", "DT_INT32"),
            },
            outputs={"y": TensorSpec("y:0", "DT_STRING", ())},
            method_name="tensorflow/serving/predict",
            defaults={"k": np.array(3, np.int32)},
        )
    },
    "tensorflow_savedmodel",
)


def tensor(name, dtype, *sizes, is_unknown=False):
    dim = [{"size": size, "name": ""} for size in sizes]
    return {
        "dtype": dtype,
        "tensor_shape": {"dim": dim, "unknown_rank": is_unknown},
        "name": name,
    }


def test_metadata_as_json_and_as_a_message():
    view = metadata_view(METADATA)
    assert view["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    signature = view["metadata"]["signature_def"]["signature_def"]["serving_default"]
    default = signature.pop("defaults")["k"]
    assert (default["dtype"], default["int_val"]) == ("DT_INT32", [3])
    assert signature == {
        "inputs": {
            "x": tensor("x:0", "DT_FLOAT", "-1", "2"),
            "k": tensor("k:0", "DT_INT32", is_unknown=True),
        },
        "outputs": {"y": tensor("y:0", "DT_STRING")},
        "method_name": "tensorflow/serving/predict",
    }
    assert metadata_response(METADATA).model_spec.version.value == 7


def test_a_label_that_is_no_text_is_shown_as_far_as_it_is():
    message = classification_pb2.ClassificationResult()
    fill_result(message, [[(b"a\xff", 0.5)]])
    ((found,),) = [row.classes for row in message.classifications]
    assert (found.label, found.score) == ("a\N{REPLACEMENT CHARACTER}", 0.5)
