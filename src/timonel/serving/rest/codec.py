"""The JSON of Predict requests to arrays. Pure functions.

A request is row-wise (``instances``) or columnar (``inputs``), and its response takes the same
form (see `timonel.serving.rest.encoding`). Wordings are TensorFlow Serving's, as clients match on
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timonel.serving.rest.jsontext import contains, echo, parse
from timonel.serving.rest.outline import Outline, outline
from timonel.serving.rest.outlined import decode_outline
from timonel.serving.rest.tensors import (
    Allocate,
    Column,
    allocate_plainly,
    is_b64,
    to_array,
    to_array_fast,
)
from timonel.serving.runtimes.base import Array, TensorSpec
from timonel.serving.status import StatusError, invalid_argument

Specs = Mapping[str, TensorSpec]


class RequestBody:
    """A request whose text has been parsed, but whose tensors have not.

    Args:
        signature_name: The signature asked for; empty for the default one.
        body: The text.
        outline: The same, with its large arrays of numbers read; none where that gave up.
    """

    def __init__(self, signature_name: str, body: bytes, outline: Outline | None = None) -> None:
        self.signature_name = signature_name
        self.outline = outline
        self._body = body
        self._content: dict[str, Any] | None = None

    @property
    def content(self) -> dict[str, Any]:
        """The whole JSON object."""
        # Not a `cached_property`: before Python 3.12, it has one lock for all instances, at which
        # the event loop would wait for the large body of another request.
        if self._content is None:
            self._content = parse(self._body)
        return self._content

    @property
    def has_booleans(self) -> bool:
        """Whether true or false may occur in it."""
        return contains(self._body, b"true") or contains(self._body, b"false")

    @property
    def by_row(self) -> bool:
        """Whether the request, and so the response, is row-wise."""
        content = self.content if self.outline is None else self.outline.content
        return "instances" in content


def parse_request(body: bytes) -> RequestBody:
    """Parse a request as far as it goes without knowing the model.

    Raises:
        StatusError: The text is no JSON object, or names its signature wrongly.
    """
    found = outline(body)
    if found is not None:
        name = found.fill(found.content.get("signature_name", ""))
        if isinstance(name, str):
            return RequestBody(name, body, found)
    request = RequestBody("", body)
    request.signature_name = signature_name(request.content)
    return request


def signature_name(content: Mapping[str, Any]) -> str:
    """Return the signature that a request names; empty for the default one.

    Raises:
        StatusError: It is no string.
    """
    name = content.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {echo(content)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def decode(
    request: RequestBody, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array]:
    """Return a request's tensors by input name.

    Args:
        request: The parsed request.
        specs: The signature's inputs; only names and dtypes are used.
        allocate: Makes the arrays that large tensors are written into.

    Raises:
        StatusError: The tensors are not there, ragged, or of the wrong type.
    """
    if not specs:
        raise invalid_argument(
            f"Failed to get input map for signature: {request.signature_name or 'DEFAULT'}"
        )
    if request.outline is not None:
        arrays = decode_outline(request.outline, specs, allocate)
        if arrays is not None:
            return arrays
    content = request.content
    if "instances" in content:
        if "inputs" in content:
            raise invalid_argument(
                f"JSON Value: {echo(content)} Not formatted correctly expecting only one of "
                "'inputs' or 'instances' keys to exist "
            )
        return _decode_instances(request, specs)
    if "inputs" in content:
        return _decode_inputs(request, specs)
    raise invalid_argument("Missing 'inputs' or 'instances' key")


def _decode_instances(request: RequestBody, specs: Specs) -> dict[str, Array]:
    instances = request.content["instances"]
    if not isinstance(instances, list):
        raise invalid_argument(
            f"JSON Value: {echo(request.content)} Expecting 'instances' to be an list/array"
        )
    if not instances:
        raise invalid_argument(
            f"JSON Value: {echo(request.content)} No values in 'instances' array"
        )
    return _decode_instances_fast(request, instances, specs) or decode_rows(instances, specs)


def _decode_instances_fast(
    request: RequestBody, instances: list[Any], specs: Specs
) -> dict[str, Array] | None:
    """Return the tensors if all are numbers and all is well, else none."""
    if request.has_booleans:
        return None
    if not isinstance(instances[0], dict):
        columns = dict.fromkeys(specs, instances) if len(specs) == 1 else {}
    else:
        try:
            columns = {name: [row[name] for row in instances] for name in specs}
        except (KeyError, TypeError):
            return None
        if any(len(row) != len(specs) for row in instances):
            return None
    arrays: dict[str, Array] = {}
    for name, column in columns.items():
        array = to_array_fast(column, specs[name].dtype)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def decode_rows(instances: list[Any], specs: Specs) -> dict[str, Array]:
    """Return the tensors of row-wise input, element by element: the definition of what is right.

    Raises:
        StatusError: An element does not fit; the message says which.
    """
    named = _is_row_object(instances[0])
    if not isinstance(instances[0], dict) and len(specs) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    columns = {name: Column(spec.dtype) for name, spec in specs.items()}
    for index, element in enumerate(instances):
        if named:
            _add_row(columns, index, element, specs)
        else:
            _add_value(columns, index, element)
    return {name: column.to_array() for name, column in columns.items()}


def _add_row(columns: dict[str, Column], index: int, element: Any, specs: Specs) -> None:
    if not _is_row_object(element):
        raise invalid_argument(f"Expecting object but got list at item {index} of input list")
    for name, value in element.items():
        try:
            _add(columns, name, value)
        except StatusError as error:
            raise invalid_argument(
                f"Failed to process element: {index} key: {name} of 'instances' list. "
                f"Error: {error}"
            ) from error
    if element.keys() != specs.keys():
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. JSON object: "
            f"{echo(element)} keys must be equal to: {','.join(sorted(specs))}"
        )


def _add_value(columns: dict[str, Column], index: int, element: Any) -> None:
    if _is_row_object(element):
        raise invalid_argument(f"Expecting value/list but got object at item {index} of input list")
    (column,) = columns.values()
    try:
        column.add(element)
    except StatusError as error:
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. Error: {error}"
        ) from error


def _add(columns: dict[str, Column], name: str, value: Any) -> None:
    if name not in columns:
        raise invalid_argument(f"JSON object: does not have named input: {name}")
    columns[name].add(value)


def _decode_inputs(request: RequestBody, specs: Specs) -> dict[str, Array]:
    inputs = request.content["inputs"]
    if not _is_row_object(inputs):
        if len(specs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        inputs = {next(iter(specs)): inputs}
    for name in specs:
        if name not in inputs:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
    return {name: _column(inputs[name], spec, request) for name, spec in specs.items()}


def _column(value: Any, spec: TensorSpec, request: RequestBody) -> Array:
    array = None if request.has_booleans else to_array_fast(value, spec.dtype)
    return to_array(value, spec.dtype) if array is None else array


def _is_row_object(value: object) -> bool:
    return isinstance(value, dict) and not is_b64(value)
