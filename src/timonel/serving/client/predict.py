"""Query a model from Python or the command line, without TensorFlow.

A running server of the workspace is found by its record. If none serves the model, a temporary
server is started for the call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack
from urllib.parse import unquote, urlsplit

from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.models.safety.trust_options import TrustOptions
from timonel.models.schema import result_of
from timonel.options import with_defaults
from timonel.serving.client.connection import (
    ClientSignature,
    HttpConnection,
    HttpError,
    UntrustedError,
    model_path,
    parse_signature,
)
from timonel.serving.client.instances import Instance, Notify, check_files, instances
from timonel.serving.credentials import Credentials
from timonel.serving.launch import launch
from timonel.serving.references import resolve, split_reference, version_of, workspace_for
from timonel.serving.server_records import find_server
from timonel.serving.settings.runtime import RuntimeSettings, by_model
from timonel.serving.settings.server import ServerSettings
from timonel.serving.signature import DEFAULT_SIGNATURE
from timonel.storage import Workspace
from timonel.storage.aliases import split_alias

_LOG = logging.getLogger(__name__)
_TOGETHER = 32
"""Inputs of one request."""
_SWAPS = 20
"""Attempts to get all answers of a call from one version, while an endpoint splits its traffic."""
_URL_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(?::predict)?/?\Z")


@dataclass(frozen=True)
class Prediction:
    """Prediction of a model for one input.

    Args:
        source: The input: a file or a row.
        model: The model's name.
        version: The version that answered.
        label: The most likely class, for a classifier.
        scores: The score of every class, highest first; by index if the classes have no names.
        value: The number, for a model with one number per row and no labels.
        outputs: All outputs of the model, by name.
    """

    source: str
    model: str
    version: int
    label: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    value: int | float | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Target:
    """Server and model of a prediction."""

    url: str
    model: str
    version: int | str | None
    """Its number or label."""


def predict(
    model_or_url: str | os.PathLike[str],
    inputs: object,
    *,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    version: int | None = None,
    notify: Notify | None = None,
    api_key: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    **trust: Unpack[TrustOptions],
) -> list[Prediction]:
    """Predict with a model of the workspace or a running server.

    Arguments, results and errors are those of `timonel.predict`, which finds endpoints, too.
    """
    inform = notify or (lambda line: _LOG.info("%s", line))

    def before_loading(line: str) -> None:
        # Loading takes seconds: check for missing files first.
        check_files(inputs)
        inform(line)

    caller = Credentials.of(api_key, None if tls_ca is None else os.fspath(tls_ca))
    trusted = with_defaults(TrustOptions, trust)
    runtime = RuntimeSettings(
        allow_ops=by_model(trusted["allow_ops"], "an operation"),
        op_libraries=tuple(trusted["op_libraries"]),
    )
    place = _target(model_or_url, workspace, version, before_loading, caller, runtime)
    with place as target, HttpConnection(target.url, caller) as connection:
        # Missing values are worth a warning in a script, which has no `notify`.
        return _ask(connection, target, inputs, notify or (lambda line: _LOG.warning("%s", line)))


@contextlib.contextmanager
def _target(
    model_or_url: str | os.PathLike[str],
    workspace: Workspace | str | os.PathLike[str] | None,
    version: int | None,
    notify: Notify,
    caller: Credentials,
    runtime: RuntimeSettings,
) -> Iterator[_Target]:
    text = os.fspath(model_or_url)
    if text.startswith(("http://", "https://")):
        _check_trust(runtime, text)
        yield _from_url(text, version, caller)
        return
    place = workspace_for(workspace, [text])
    model, alias = split_alias(text)
    if alias is not None:
        # Looked up once, so that one version gives all answers.
        version = version_of(resolve(text, place, version))
        text = model
    name, named_version = split_reference(text)
    version = named_version if version is None else version
    record = find_server(place.servers, name)
    if record is not None and _serves(record.rest_url, name, version, caller):
        _check_trust(runtime, record.rest_url)
        yield _Target(record.rest_url, name, version)
        return
    try:
        settings = resolve(text, place, version)
    except NotFoundError as error:
        if record is None:
            raise
        with HttpConnection(record.rest_url, caller) as connection:
            raise _not_served(_Target(record.rest_url, name, version), connection) from error
    if settings.name != name and (other := find_server(place.servers, settings.name)):
        notify(
            f"loading {text} for this call; "
            f"'timonel predict {settings.name}' asks the server {other.rest_url}"
        )
    else:
        which = f"version {version} of {settings.name}" if version is not None else settings.name
        notify(f"no server of this workspace serves {which}: loading it for this call")
    temporary = ServerSettings(
        models=(settings,), rest_port=0, grpc_port=None, drain_s=5.0, runtime=runtime
    )
    with launch(temporary, place) as server:
        yield _Target(server.rest_url, settings.name, version)


def _check_trust(runtime: RuntimeSettings, url: str) -> None:
    """Reject options for loading a model if a server has loaded it."""
    if runtime.allow_ops or runtime.op_libraries:
        raise SpecError(
            f"the model is served at {url}, which decides what it loads",
            hint="start that server with --allow-op or --op-library",
        )


def _serves(url: str, model: str, version: int | None, caller: Credentials) -> bool:
    try:
        with HttpConnection(url, caller) as connection:
            connection.get(f"{model_path(model, version)}/metadata")
    except ServingError as error:
        is_denied = isinstance(error, HttpError) and error.status in {401, 403}
        if is_denied or isinstance(error, UntrustedError):
            # Loading the model here would bypass the server's access control.
            raise
        return False
    return True


def _from_url(url: str, version: int | None, caller: Credentials) -> _Target:
    parts = urlsplit(url)
    server = f"{parts.scheme}://{parts.netloc}"
    if parts.path in {"", "/"}:
        return _Target(server, _only_model(server, caller), version)
    found = _URL_PATH.match(parts.path)
    if found is None:
        raise NotFoundError(
            f"{url} is not the address of a model",
            hint="use http://HOST:PORT/v1/models/NAME",
        )
    named = int(found[2]) if found[2] else found[3] and unquote(found[3])
    return _Target(server, unquote(found[1]), named if version is None else version)


def _only_model(server: str, caller: Credentials) -> str:
    with HttpConnection(server, caller) as connection:
        try:
            names = [model["name"] for model in connection.get("/v1/models")["models"]]
        except HttpError as error:
            if error.status == 401:
                raise
            # TensorFlow Serving has no listing.
            names = []
    if len(names) == 1:
        return str(names[0])
    known = f"it serves {', '.join(names)}" if names else "it does not list its models"
    raise NotFoundError(
        f"the address {server} names no model",
        hint=f"{known}: use {server}/v1/models/NAME",
    )


def _ask(
    connection: HttpConnection, target: _Target, inputs: object, notify: Notify
) -> list[Prediction]:
    for attempt in range(_SWAPS):
        signature = _signature_of(connection, target)
        items = instances(inputs, signature, notify)
        listed = _listed(connection, signature)
        # Rows of one request may change each other's results.
        together = _TOGETHER if DEFAULT_SIGNATURE in listed.get("independent_rows", ()) else 1
        try:
            rows = _post(connection, signature, items, together)
        except HttpError as error:
            # The version was replaced after its metadata was read. Retry, as all answers must come
            # from one version.
            if error.status == 404 and target.version is None and attempt < _SWAPS - 1:
                continue
            raise
        labels = [str(label) for label in listed.get("labels", ())]
        return [
            _prediction(item, row, signature, labels) for item, row in zip(items, rows, strict=True)
        ]
    raise AssertionError("the last attempt returns or raises")


def _signature_of(connection: HttpConnection, target: _Target) -> ClientSignature:
    try:
        return parse_signature(
            connection.get(f"{model_path(target.model, target.version)}/metadata")
        )
    except HttpError as error:
        if error.status != 404:
            raise
        raise _not_served(target, connection) from error


def _not_served(target: _Target, connection: HttpConnection) -> NotFoundError:
    which = "" if target.version is None else f"version {target.version} of "
    hint = f"see {target.url}/v1/models"
    with contextlib.suppress(ServingError, LookupError, TypeError):
        statuses = connection.get(model_path(target.model))["model_version_status"]
        known = [each["version"] for each in statuses if each["state"] == "AVAILABLE"]
        hint = f"it serves {target.model}/{', '.join(known)}" if known else hint
    return NotFoundError(f"{target.url} does not serve {which}{target.model}", hint=hint)


def _post(
    connection: HttpConnection,
    signature: ClientSignature,
    items: Sequence[Instance],
    together: int,
) -> list[Any]:
    path = f"{model_path(signature.model, signature.version)}:predict"
    rows: list[Any] = []
    for start in range(0, len(items), together):
        batch = [item.value for item in items[start : start + together]]
        rows += connection.post(path, {"instances": batch})["predictions"]
    if len(rows) != len(items):
        raise ServingError(
            f"expected one prediction for each of {len(items)} inputs, got {len(rows)}",
            hint="the model returns other rows than it takes: use a client of your own",
        )
    return rows


def _listed(connection: HttpConnection, signature: ClientSignature) -> Mapping[str, Any]:
    """Return what the server lists of a version; nothing from TensorFlow Serving."""
    try:
        models = connection.get("/v1/models")["models"]
    except HttpError:
        return {}
    for model in models:
        for version in model["versions"]:
            if (model["name"], version["version"]) == (signature.model, str(signature.version)):
                return dict(version)
    return {}


def _prediction(
    item: Instance, row: Any, signature: ClientSignature, labels: Sequence[str]
) -> Prediction:
    outputs = row if len(signature.outputs) > 1 else {signature.outputs[0]: row}
    scores = _scores(result_of("scores", outputs), labels)
    label = result_of("label", outputs)
    return Prediction(
        source=item.source,
        model=signature.model,
        version=signature.version,
        label=label if isinstance(label, str) else next(iter(scores), None),
        scores=scores,
        value=_only_number(outputs),
        outputs=outputs,
    )


def _only_number(outputs: Mapping[str, Any]) -> int | float | None:
    (value, *others) = outputs.values()
    while isinstance(value, list) and len(value) == 1:
        (value,) = value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and not others else None


def _scores(scores: Any, labels: Sequence[str]) -> dict[str, float]:
    if not isinstance(scores, list) or not all(isinstance(s, int | float) for s in scores):
        return {}
    names = labels if len(labels) == len(scores) else [str(i) for i in range(len(scores))]
    pairs = zip(names, map(float, scores), strict=True)
    return dict(sorted(pairs, key=lambda pair: pair[1], reverse=True))
