"""Generate shell commands that query a running server."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
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
        sizes = _sizes(signature.inputs[0])
        if signature.only_input not in row and math.prod(sizes) > _INLINE_VALUES:
            return _large_tensor(url, signature.inputs[0].dtype, sizes, options)
    instance = _instance(signature, row)
    body = json.dumps({"instances": [instance]}, ensure_ascii=False)
    return f"curl -s {options}-d {shlex.quote(body)} {shlex.quote(url)}"


def _instance(signature: ClientSignature, row: Mapping[str, Any]) -> Any:
    values = {
        spec.name: row[spec.name] if spec.name in row else _value(spec) for spec in signature.inputs
    }
    return values if signature.kind is InstanceKind.ROW else next(iter(values.values()))


def stored_row(version: Path) -> dict[str, Any]:
    """Return the values of the first warm-up request that are short enough for a command line."""
    row = {
        name: for_json(name, array[:1])[0]
        for _, inputs in samples_of(version, limit=1)
        for name, array in inputs.items()
        if array.ndim and 0 < array[:1].size <= _INLINE_VALUES
    }
    # JSON has no NaN; a missing number of a row is null.
    nulls = {k: None for k, each in row.items() if isinstance(each, float) and math.isnan(each)}
    return {name: each for name, each in (row | nulls).items() if _is_short(each)}


def _is_short(value: Any) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= _INLINE_CHARACTERS
    except ValueError:  # NaN in a list, or infinite
        return False


def _large_tensor(url: str, dtype: str, sizes: Sequence[int], options: str) -> str:
    nested = repr(_scalar(dtype)).replace("'", '"')
    for size in reversed(sizes):
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
