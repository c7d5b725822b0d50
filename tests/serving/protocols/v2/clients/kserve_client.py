"""Asks a server through KServe's own client: ``... HOST:REST_PORT HOST:GRPC_PORT PNG``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
from common import ARRAYS, check, name_of
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

JSON_TYPES = [name for name in ARRAYS if name != "FP16"]


def tensor(datatype, *, binary):
    array = ARRAYS[datatype]
    made = InferInput(name_of(datatype), list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def request(*, binary, parameters=None, **others):
    # For this client, BF16 does not exist, and FP16 has no form in JSON.
    inputs = [tensor(each, binary=binary or each == "FP16") for each in ARRAYS]
    parameters = {"signature_name": "without_bf16", **(parameters or {})}
    return InferRequest("types", inputs, parameters=parameters, **others)


def check_all(response, datatypes):
    found = {output.name: output for output in response.outputs}
    for datatype in datatypes:
        check(found[f"{name_of(datatype)}_out"].as_numpy(), ARRAYS[datatype])


def pick(content):
    made = InferInput("image_bytes", [1], "BYTES")
    made.set_data_from_numpy(np.array([content], object), binary_data=True)
    return InferRequest(model_name="images", infer_inputs=[made])


async def over_rest(url, content):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "types")
    assert not await client.is_model_ready(url, "nosuch")
    for binary in (False, True):
        response = await client.infer(
            url,
            request(binary=binary, request_id="7", parameters={"binary_data_output": True}),
            "types",
        )
        check_all(response, ARRAYS)
        assert response.id == "7"
        asked = [RequestedOutput(f"{name_of(each)}_out") for each in JSON_TYPES]
        response = await client.infer(url, request(binary=binary, request_outputs=asked), "types")
        check_all(response, JSON_TYPES)
    response = await client.infer(url, pick(content), "images")
    found = {output.name: output.as_numpy().tolist() for output in response.outputs}
    assert found == {"label": ["dog"], "scores": [[0.0, 1.0]]}, found
    try:
        await client.infer(url, request(binary=True), "nosuch")
    except Exception as error:
        text = str(error)
    else:
        text = "no refusal"
    assert "404" in text, text
    assert "Latest(nosuch)" in text, text
    await client.close()


async def over_grpc(address, content):
    async with InferenceGRPCClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("types")
        response = await client.infer(request(binary=True, request_id="7"))
        check_all(response, ARRAYS)
        assert response.id == "7"
        typed = [tensor(each, binary=False) for each in JSON_TYPES]
        response = await client.infer(
            InferRequest("types", typed, parameters={"signature_name": "without_16_bits"})
        )
        check_all(response, JSON_TYPES)
        response = await client.infer(pick(content))
        found = {output.name: output.as_numpy().tolist() for output in response.outputs}
        assert found["scores"] == [[0.0, 1.0]], found


if __name__ == "__main__":
    rest, grpc = sys.argv[1:3]
    png = Path(sys.argv[3]).read_bytes()
    asyncio.run(over_rest(f"http://{rest}", png))
    asyncio.run(over_grpc(grpc, png))
    print("ok")
