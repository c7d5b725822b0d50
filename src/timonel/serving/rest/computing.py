"""What a model computes for a request over REST: bytes in, bytes out. Blocks."""

from __future__ import annotations

import zlib
from typing import Final

from timonel.serving import classification
from timonel.serving.classification import CLASSIFY, REGRESS
from timonel.serving.core import Call, DataPlane, RequestContext
from timonel.serving.rest.codec import decode, parse_request, signature_name
from timonel.serving.rest.encoding import encode, encode_classes, encode_values
from timonel.serving.rest.features import examples_from_json
from timonel.serving.rest.jsontext import parse
from timonel.serving.rest.options import RestOptions
from timonel.serving.rest.routes import Action, Route
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, Signature
from timonel.serving.status import Code, StatusError, invalid_argument

_GUNZIPPED_LIMIT: Final = 100 * 2**20
_PREDICT: Final = "tensorflow/serving/predict"


def answer(
    plane: DataPlane, options: RestOptions, route: Route, body: bytes, context: RequestContext
) -> bytes:
    """Return the response text of a request for one of `routes.COMPUTING`.

    Raises:
        StatusError: The request is wrong, or the model refused it.
    """
    if route.action is Action.PREDICT:
        return _predict(plane, options, route, body, context)
    content = parse(body)
    name = signature_name(content)
    examples, shared = examples_from_json(content)
    compute = classification.classify if route.action is Action.CLASSIFY else classification.regress
    with plane.call(route.spec, context) as call:
        result = compute(call, name, examples, shared, check_method=options.check_method_names)
    if isinstance(result, classification.Classes):
        return encode_classes(result, options.dialect)
    return encode_values(result, options.dialect)


def gunzipped(body: bytes) -> bytes:
    """Return what was compressed; nothing if it is damaged or too large, as TensorFlow Serving."""
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(body, _GUNZIPPED_LIMIT)
    except zlib.error:
        return b""
    return b"" if stream.unconsumed_tail or not stream.eof else plain


def _predict(
    plane: DataPlane, options: RestOptions, route: Route, body: bytes, context: RequestContext
) -> bytes:
    request = parse_request(body)
    with plane.call(route.spec, context) as call:
        signature = _signature(call, request.signature_name)
        arrays = decode(request, signature.inputs)
        if options.check_method_names:
            _check_method(signature)
        outputs = call.predict(signature, arrays)
    return encode(outputs, by_row=request.by_row, dialect=options.dialect)


def _signature(call: Call, name: str) -> Signature:
    signature = call.find(name)
    if signature is None:
        raise invalid_argument(
            f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def'
        )
    return signature


def _check_method(signature: Signature) -> None:
    methods = (_PREDICT, CLASSIFY, REGRESS)
    if signature.method_name not in methods:
        raise StatusError(
            Code.INTERNAL,
            "Expected prediction signature method_name to be one of "
            f"{{{', '.join(methods)}}}. Was: {signature.method_name}",
        )
