"""Generate shell commands that query a running server."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timonel.serving.client.connection import (
    ClientSignature,
    HttpConnection,
    Input,
    InstanceKind,
    model_path,
    parse_signature,
)
from timonel.serving.codec.writer import for_json
from timonel.serving.credentials import Credentials
from timonel.serving.handle import Server
from timonel.serving.runtimes.saved_model import samples_of
from timonel.serving.signature import STRING

_INLINE_VALUES, _INLINE_CHARACTERS = 64, 500


def curl_example(
    server: Server | str,
    model: str,
    *,
    image: str = "some_image.png",
    version: Path | None = None,
) -> str:
    """Return a ready-to-paste ``curl`` command for a model's default signature.

    Args:
        server: A running server, or its REST address.
        model: The model's name.
        image: Image file to send, if the model takes images.
        version: Folder of its version, whose warm-up requests give the values.

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
    row = {} if version is None else stored_row(version)
    return curl_line(target, signature, image=image, row=row, options=caller.curl_options)


def curl_line(
    url: str,
    signature: ClientSignature,
    *,
    image: str = "some_image.png",
    row: Mapping[str, Any] = MappingProxyType({}),
    options: str = "",
) -> str:
    """Return a command that sends an example for a signature.

    Args:
        image: Image file to send, if the model takes images.
        row: Values of inputs by name; others are made up.
    """
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
        instance = row[only.name] if only.name in row else _value(only)
    else:
        values = {spec.name: _value(spec) for spec in signature.inputs}
        instance = values | {name: each for name, each in row.items() if name in values}
    body = json.dumps({"instances": [instance]}, ensure_ascii=False)
    return f"curl -s {options}-d {shlex.quote(body)} {shlex.quote(url)}"


def stored_row(version: Path) -> dict[str, Any]:
    """Return the values of the first warm-up request that are short enough for a command line."""
    row = {
        name: for_json(name, array[:1])[0]
        for _, inputs in samples_of(version, limit=1)
        for name, array in inputs.items()
        if array.ndim and 0 < array[:1].size <= _INLINE_VALUES
    }
    return {name: each for name, each in row.items() if len(json.dumps(each)) <= _INLINE_CHARACTERS}


def _large_tensor(url: str, spec: Input, options: str) -> str:
    nested = repr(_scalar(spec.dtype)).replace("'", '"')
    for size in reversed(_sizes(spec)):
        nested = f"[{nested}] * {size}"
    program = shlex.quote(f'import json; print(json.dumps({{"instances": [{nested}]}}))')
    return f"python3 -c {program} | curl -s {options}-d @- {shlex.quote(url)}"


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
