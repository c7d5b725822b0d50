from __future__ import annotations

import numpy as np

from timonel.serving.inference import Metadata
from timonel.serving.protocols.tfs_rest.app import metadata_view
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


def test_the_views_are_what_the_protos_print():
    from google.protobuf import json_format

    from timonel.serving.inference.conversion import metadata_response, signature_map

    printed = json_format.MessageToDict(
        signature_map(METADATA),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    view = metadata_view(METADATA)
    assert view["metadata"]["signature_def"] == printed
    assert view["model_spec"] == {"name": "m", "signature_name": "", "version": "7"}
    default = printed["signature_def"]["serving_default"]["defaults"]["k"]
    assert (default["dtype"], default["int_val"]) == ("DT_INT32", [3])
    assert metadata_response(METADATA).model_spec.version.value == 7
