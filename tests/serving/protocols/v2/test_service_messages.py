from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool

from timonel.serving.protocols.v2 import service as messages


def test_the_service_is_described():
    service = messages.POOL.FindServiceByName(messages.SERVICE)
    assert {
        method.name: (method.input_type.name, method.output_type.name) for method in service.methods
    } == {
        name: (f"{name}Request", f"{name}Response")
        for name in (
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelInfer",
        )
    }


def test_parameters_are_a_map_to_one_of_five_kinds():
    message = messages.ModelInferRequest()
    message.parameters["a"].int64_param = 5
    message.parameters["a"].string_param = "b"
    assert message.parameters["a"].WhichOneof("parameter_choice") == "string_param"
    message.inputs.add(name="x").parameters["p"].bool_param = True
    again = messages.ModelInferRequest.FromString(message.SerializeToString())
    assert again == message
    kinds = messages.message_class("InferParameter").DESCRIPTOR.oneofs_by_name["parameter_choice"]
    assert len(kinds.fields) == 5


def test_a_message_is_on_the_wire_as_the_protocol_says():
    request = messages.ModelInferRequest(model_name="m", raw_input_contents=[b"r"])
    request.inputs.add(name="x", datatype="FP32", shape=[2]).contents.fp32_contents.append(1)
    assert request.SerializeToString() == bytes.fromhex(
        "0a016d"  # 1: m
        "2a14"  # 5:
        "0a0178"  # 1: x
        "120446503332"  # 2: FP32
        "1a0102"  # 3: [2]
        "2a06320400"
        "00803f"  # 5: {6: [1.0]}
        "3a0172"  # 7: r
    )


def test_clients_libraries_may_be_in_the_same_process():
    # They put the same names, in another file, into the pool that everybody shares.
    default = descriptor_pool.Default()
    with pytest.raises(KeyError):
        default.FindMessageTypeByName("inference.ModelInferRequest")
    assert default is not messages.POOL
