"""TensorFlow Serving's REST API: URLs and requests.

URLs match by TensorFlow Serving's patterns. As there, the matched text includes the query string:
``/v1/models/m?x=1`` names a model ``m?x=1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from timonel.serving.asgi import Request, Response, Route, is_gzipped, json_response
from timonel.serving.inference import conversion
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue, Metadata, ModelSpec
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.protocols.http import (
    answering,
    body_of,
    content_type,
    correlation_of,
    preflight,
    unquoted,
)
from timonel.serving.protocols.tfs_rest.examples import ExamplesCodec
from timonel.serving.protocols.tfs_rest.predict import ComputeCodec, PredictCodec, RestOptions
from timonel.serving.settings.auth import Right
from timonel.serving.settings.server import RestSettings
from timonel.serving.status import invalid_argument, not_found

_FLAGS: Final = re.IGNORECASE | re.ASCII
_VERSION: Final = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
COMPUTE: Final = re.compile(
    rf"/v1/models/([^/:]+){_VERSION}:(?-i:(classify|regress|predict))", _FLAGS
)
_READ: Final = re.compile(rf"/v1/models/([^/:]+){_VERSION}(/metadata)?", _FLAGS)
_NAMELESS: Final = re.compile(rf"/v1/models{_VERSION}(/metadata)?", _FLAGS)
_LIST: Final = re.compile(r"/v1/models", _FLAGS)
_API: Final = re.compile(r"/v1/.*", _FLAGS | re.DOTALL)
_INT64_DIGITS: Final = 19
CORS: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
)
"""CORS headers that let pages of other origins read a response."""


CODECS: Final[Mapping[str, type[ComputeCodec]]] = {
    "predict": PredictCodec,
    "classify": ExamplesCodec,
    "regress": ExamplesCodec,
}


def spec_of(match: re.Match[str]) -> ModelSpec:
    """Return the version in a URL: name, number and label in the first three groups."""
    name, version, label = match.group(1, 2, 3)
    if version is None:
        return ModelSpec(unquoted(name), None, unquoted(label) or None)
    digits = version.lstrip("0") or "0"
    if len(digits) > _INT64_DIGITS or int(digits) >= 2**63:
        # TensorFlow Serving: 400 with an empty body.
        found = f"Specific({unquoted(name)}, {version[:64]})"
        raise not_found(f"Servable not found for request: {found}")
    return ModelSpec(unquoted(name), int(digits))


class RestApi:
    """TensorFlow Serving's REST API."""

    def __init__(
        self,
        flow: Flow,
        settings: RestSettings | None = None,
        max_body: int | None = None,
    ) -> None:
        self.flow = flow
        self.options = RestOptions(settings or RestSettings(), max_body)

    def routes(self) -> list[Route]:
        """Return the routes below ``/v1/``."""
        rows = [
            ("POST", COMPUTE, self._compute),
            ("GET", _READ, self._read),
            *([("GET", _LIST, self._list)] if self.options.settings.extensions else ()),
            ("GET", _NAMELESS, self._nameless),
            ("OPTIONS", _API, preflight),
            ("", _API, self._malformed),
        ]
        headers = CORS if self.options.settings.cors else ()
        return [
            Route(
                frozenset(method.split()),
                pattern,
                answering(answer, headers),
                None if answer is preflight else Right.USE,
            )
            for method, pattern, answer in rows
        ]

    async def _compute(self, request: Request) -> Response:
        headers = request.headers
        try:
            spec = spec_of(request.match)
            body = await body_of(request, self.options.max_body)
        except BaseException:
            with self.flow.observed("REST", ""):
                raise
        verb, media, zipped = request.match[4], content_type(headers), is_gzipped(headers)
        codec = CODECS[verb](self.options, verb, spec, body, media, zipped=zipped)
        timeout_s, correlation = self.options.settings.timeout_s, correlation_of(headers)
        return await self.flow.run(codec, timeout_s, correlation, request.receive)

    async def _read(self, request: Request) -> Response:
        name, _, _, metadata = request.match.groups()
        with self.flow.observed("REST", "", unquoted(name), correlation_of(request.headers)):
            spec = spec_of(request.match)
            if metadata:
                return json_response(metadata_view(self.flow.catalogue.metadata(spec)))
            # A label is ignored, as in TensorFlow Serving.
            statuses = self.flow.catalogue.statuses(spec.name, spec.version)
            return json_response(conversion.as_json(conversion.status_response(statuses)))

    async def _list(self, request: Request) -> Response:
        with self.flow.observed("REST", "", correlation=correlation_of(request.headers)):
            return json_response(models_view(self.flow.catalogue))

    async def _nameless(self, _: Request) -> Response:
        with self.flow.observed("REST", ""):
            raise invalid_argument("Missing model name in request.")

    async def _malformed(self, request: Request) -> Response:
        with self.flow.observed("REST", ""):
            method = request.scope["method"]
            raise invalid_argument(f"Malformed request: {method} {request.target}")


def metadata_view(metadata: Metadata) -> dict[str, Any]:
    """Return the signatures of a version."""
    spec = {"name": metadata.name, "signature_name": "", "version": str(metadata.version)}
    signatures = conversion.as_json(conversion.signature_map(metadata))
    return {"model_spec": spec, "metadata": {"signature_def": signatures}}


def models_view(catalogue: Catalogue) -> dict[str, Any]:
    """Return the list of all models, an extension of TensorFlow Serving's API."""
    return {
        "models": [
            {
                "name": name,
                "versions": [_listed(catalogue, name, each) for each in catalogue.known(name)],
            }
            for name in catalogue.names
        ]
    }


def _listed(catalogue: Catalogue, name: str, status: VersionStatus) -> dict[str, Any]:
    # A loaded version that cannot answer keeps the state that TensorFlow Serving would report, with
    # the reason added.
    reason = catalogue.outage(name, status.number) or status
    servable = catalogue.loaded(name).get(status.number)
    return {
        "version": str(status.number),
        "state": status.state.value,
        "status": {"error_code": reason.code.name, "error_message": reason.message},
        "labels": servable.labels if servable else (),
        "independent_rows": sorted(servable.model.independent) if servable else (),
    }
