"""Asks a server through Triton's own client: ``triton.py HOST:REST_PORT HOST:GRPC_PORT PNG``."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import tritonclient.grpc as by_grpc
import tritonclient.grpc.aio as by_grpc_aio
import tritonclient.http as by_http
import tritonclient.http.aio as by_http_aio
from common import ARRAYS as COMMON
from common import check, name_of
from tritonclient.utils import InferenceServerException

ARRAYS = COMMON | {"BF16": np.array([[1, -2]], ml_dtypes.bfloat16)}
# For this client, the others have no form in JSON.
JSON_TYPES = [name for name in ARRAYS if name not in {"FP16", "BF16"}]


def inputs(api, datatypes, **form):
    made = []
    for datatype in datatypes:
        array = ARRAYS[datatype]
        tensor = api.InferInput(name_of(datatype), list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **form)
        made.append(tensor)
    return made


def outputs(api, datatypes, **form):
    return [api.InferRequestedOutput(f"{name_of(each)}_out", **form) for each in datatypes]


def check_all(result, datatypes=tuple(ARRAYS)):
    for datatype in datatypes:
        check(result.as_numpy(f"{name_of(datatype)}_out"), ARRAYS[datatype])


def refused(call, *told):
    try:
        call()
    except InferenceServerException as error:
        text = str(error)
    else:
        text = "no refusal"
    for part in told:
        assert part in text, text


def describe(client, as_json):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("types")
    assert client.is_model_ready("types", "1")
    model = client.get_model_metadata("types", **as_json)
    assert model["name"] == "types"
    assert model["versions"] == ["1"]
    assert {each["datatype"] for each in model["inputs"]} == set(ARRAYS)
    server = client.get_server_metadata(**as_json)
    assert server["name"] == "timonel"


def image(api, client, content):
    tensor = api.InferInput("image_bytes", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], object))
    result = client.infer("images", [tensor])
    assert result.as_numpy("label").tolist() == [b"dog"], result.as_numpy("label")
    assert result.as_numpy("scores").tolist() == [[0.0, 1.0]]


def over_http(address, content):
    with by_http.InferenceServerClient(address) as client:
        describe(client, {})
        everything = inputs(by_http, ARRAYS)
        ask = partial(client.infer, "types")
        result = ask(everything, request_id="7")
        check_all(result)
        assert result.get_response()["id"] == "7"
        some = outputs(by_http, ["INT8", "BYTES"], binary_data=False)
        check_all(ask(everything, outputs=some), ["INT8", "BYTES"])
        check_all(ask(everything, request_compression_algorithm="gzip"))
        check_all(ask(everything, response_compression_algorithm="gzip"))
        plain = inputs(by_http, JSON_TYPES, binary_data=False)
        mixed = [*plain, *inputs(by_http, ["FP16", "BF16"])]
        check_all(ask(mixed, outputs=outputs(by_http, JSON_TYPES, binary_data=False)), JSON_TYPES)
        assert ask(everything, timeout=10_000_000, priority=1).get_response()
        pending = client.async_infer("types", everything)
        check_all(pending.get_result())
        image(by_http, client, content)
        refused(lambda: ask(everything[1:]), "400", "bool")
        refused(lambda: client.infer("nosuch", everything), "404", "nosuch")
        refused(lambda: ask(everything, model_version="9"), "404")
        refused(lambda: ask(everything, sequence_id=3), "400", "sequence")
        assert not client.is_model_ready("nosuch")


async def over_http_aio(address):
    async with by_http_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        ask = partial(client.infer, "types", inputs(by_http_aio, ARRAYS))
        for result in await asyncio.gather(*(ask() for _ in range(20))):
            check_all(result)


def over_grpc(address, content):
    with by_grpc.InferenceServerClient(address) as client:
        describe(client, {"as_json": True})
        everything = inputs(by_grpc, ARRAYS)
        result = client.infer("types", everything, request_id="7", client_timeout=20)
        check_all(result)
        assert result.get_response().id == "7"
        some = outputs(by_grpc, ["INT8", "BYTES"])
        check_all(client.infer("types", everything, outputs=some), ["INT8", "BYTES"])
        compressed = client.infer("types", everything, compression_algorithm="gzip")
        check_all(compressed)
        image(by_grpc, client, content)
        refused(lambda: client.infer("nosuch", everything), "NOT_FOUND", "nosuch")
        refused(lambda: client.infer("types", everything[1:]), "INVALID_ARGUMENT")


async def over_grpc_aio(address):
    async with by_grpc_aio.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        everything = inputs(by_grpc_aio, ARRAYS)
        for result in await asyncio.gather(*(client.infer("types", everything) for _ in range(20))):
            check_all(result)


if __name__ == "__main__":
    rest, grpc = sys.argv[1:3]
    png = Path(sys.argv[3]).read_bytes()
    over_http(rest, png)
    asyncio.run(over_http_aio(rest))
    over_grpc(grpc, png)
    asyncio.run(over_grpc_aio(grpc))
    print("ok")
