"""Generate shell commands that query a running server."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from timonel.serving.client.connection import (
    ClientSignature,
    HttpConnection,
    Input,
    InstanceKind,
    model_path,
    parse_signature,
)
from timonel.serving.credentials import Credentials
from timonel.serving.handle import Server
from timonel.serving.signature import STRING

_INLINE_VALUES = 64
# Nests a value into lists, innermost dimension first.
_AWK = (
    """BEGIN {{ x = "{value}"; n = split("{sizes}", d, " "); for (i = n; i; i--) {{ s = x; """
    """for (j = 1; j < d[i]; j++) s = s "," x; x = "[" s "]" }} """
    """printf "{{\\"instances\\": [%s]}}", x }}"""
)


def curl_example(server: Server | str, model: str, *, image: str = "some_image.png") -> str:
    """Return a ready-to-paste ``curl`` command for a model's default signature.

    Args:
        server: A running server, or its REST address.
        model: The model's name.
        image: Image file to send, if the model takes images.

    Raises:
        ServingError: The server cannot be reached, or does not serve the model.
    """
    if isinstance(server, str):
        url, caller = server, Credentials.of()
    else:
        url, caller = server.rest_url, server.caller
    with HttpConnection(url, caller) as connection:
        signature = parse_signature(connection.get(f"{model_path(model)}/metadata"))
    target = f"{url}{model_path(model)}:predict"
    return curl_line(target, signature, image=image, options=caller.curl_options)


def curl_line(
    url: str, signature: ClientSignature, *, image: str = "some_image.png", options: str = ""
) -> str:
    """Return a command that sends an example for a signature; ``options`` are those of curl."""
    if signature.kind is InstanceKind.IMAGE:
        # Through a pipe: an image exceeds the length limit of a command line.
        file = shlex.quote(image)
        return (
            """(printf '{"instances": [{"b64": "'; base64 -w0 < """
            f"""{file}; printf '"}}]}}') | curl -s {options}-d @- {shlex.quote(url)}"""
        )
    if signature.kind is InstanceKind.TENSOR:
        only = signature.inputs[0]
        if math.prod(_sizes(only)) > _INLINE_VALUES:
            return _large_tensor(url, only, options)
        instance = _value(only)
    else:
        instance = {spec.name: _value(spec) for spec in signature.inputs}
    body = json.dumps({"instances": [instance]}, ensure_ascii=False)
    return f"curl -s {options}-d {shlex.quote(body)} {shlex.quote(url)}"


def _large_tensor(url: str, spec: Input, options: str) -> str:
    sizes = " ".join(map(str, _sizes(spec)))
    program = _AWK.format(value=json.dumps(_scalar(spec.dtype)).replace('"', '\\"'), sizes=sizes)
    return f"awk {shlex.quote(program)} | curl -s {options}-d @- {shlex.quote(url)}"


def _value(spec: Input) -> Any:
    value: Any = _scalar(spec.dtype)
    for size in reversed(_sizes(spec)):
        value = [value] * size
    return value


def _sizes(spec: Input) -> tuple[int, ...]:
    return tuple(max(size, 1) for size in spec.instance_shape)


def _scalar(dtype: str) -> Any:
    if dtype == STRING:
        return "text"
    if dtype == "DT_BOOL":
        return True
    return 1 if "INT" in dtype else 1.0
