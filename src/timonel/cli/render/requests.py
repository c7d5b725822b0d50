"""A request to a served model as a line for the shell, from the signature and a real input."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.models.schema import Signature

_ZEROS: Mapping[str, Any] = {"string": "", "bool": False}


def curl_line(rest_url: str, model: str, signature: Signature, example: Any) -> str:
    """Return a ``curl`` command that asks ``model`` about ``example``.

    Args:
        rest_url: Where the server answers.
        model: The model's name.
        signature: What the model takes.
        example: The path of an image, or a row as a mapping of column to value.
    """
    url = f"{rest_url}/v1/models/{model}:predict"
    if isinstance(example, str):
        # The quotes end and begin again around the part that the shell works out.
        body = (
            """'{"instances": [{"b64": "'"$(base64 -w0 """ + shlex.quote(example) + """)"'"}]}'"""
        )
    else:
        body = shlex.quote(json.dumps({"instances": [instance(signature, example or {})]}))
    return f"curl -s -d {body} {url}"


def instance(signature: Signature, row: Mapping[str, Any]) -> Any:
    """Return ``row`` as one instance of a request; columns that it lacks get an empty value.

    A signature with a single input takes the bare value, others take a value for each name.
    """
    values = {
        name: row[name] if name in row else _empty(info.dtype, (info.shape or ())[1:])
        for name, info in sorted(signature.inputs.items())
    }
    return next(iter(values.values())) if len(values) == 1 and not row else values


def _empty(dtype: str, shape: tuple[int, ...]) -> Any:
    value: Any = _ZEROS.get(dtype, 0.0 if dtype.startswith("float") else 0)
    for size in reversed(shape):
        value = [value] * max(size, 1)
    return value
