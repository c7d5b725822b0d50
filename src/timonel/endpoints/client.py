"""Predict with endpoints by name, and else with servers and models."""

from __future__ import annotations

import os
import socket
from typing import Unpack
from urllib.parse import quote, urlsplit

from timonel.arguments import checked
from timonel.endpoints.engine import engine_of
from timonel.endpoints.handle import Endpoint, reachable_endpoints
from timonel.errors import NotFoundError, ServingError
from timonel.models.safety.trust_options import TrustOptions
from timonel.options import documented
from timonel.serving.client.instances import Notify
from timonel.serving.client.predict import Prediction
from timonel.serving.client.predict import predict as predict_with_server
from timonel.storage import Workspace, find_workspace

_CONNECT_S = 5.0


@checked()
@documented(TrustOptions)
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
    """Predict with an endpoint or model of the workspace, or a running server.

    An endpoint of that name answers, or else a running server, or else the model is loaded for this
    call. Without replicas, the endpoint starts one, and the call waits for it.

    Args:
        model_or_url: An endpoint or a model of the workspace (``digits``), a version of a model
            (``digits/3``, ``digits@champion``), a folder of versions, or a server
            (``http://127.0.0.1:8501``, with ``/v1/models/<name>`` if it has several).
        inputs: One or many: image files (or their bytes) for a model of images; a CSV, JSON, dicts
            or a DataFrame for a model of rows; values, such as texts, for one with a single input;
            an array or nested lists for one of tensors.
        workspace: The workspace or its path.
        version: The version to use; by default the server's choice.
        notify: Called with a line when a step is slow, and with the number of missing values in a
            CSV.
        api_key: An API key or a token for the server; by default the variable TIMONEL_API_KEY.
        tls_ca: File with the certificate authorities of the server; by default the variable
            TIMONEL_TLS_CA, or else the system's.
        **trust: For a model that is loaded for the call, see `TrustOptions`.

    Returns:
        One prediction per image or row, in order.

    Raises:
        NotFoundError: The model, version or file does not exist.
        InputError: The model takes another kind of input, or other columns.
        DataError: A file is not an image, or cannot be read as CSV or JSON.
        ServingError: The endpoint or server cannot be reached, or rejected the request.
    """
    return predict_with_server(
        _url_of(os.fspath(model_or_url), workspace) or model_or_url,
        inputs,
        workspace=workspace,
        version=version,
        notify=notify,
        api_key=api_key,
        tls_ca=tls_ca,
        **trust,
    )


def _url_of(name: str, workspace: Workspace | str | os.PathLike[str] | None) -> str | None:
    """Return the address of the model of an endpoint; None if no endpoint has the name."""
    if "/" in name or "@" in name:
        return None
    try:
        place = find_workspace(workspace, create=False)
    except NotFoundError:
        return None  # a folder, say, which needs none
    endpoint = next((each for each in reachable_endpoints(place) if each.name == name), None)
    if endpoint is None:
        return None
    if not (endpoint.is_controlled or endpoint.is_listening()):
        raise ServingError(
            f"the endpoint {name} does not run", hint="start it with 'timonel endpoints start'"
        )
    path = f"/v1/models/{quote(endpoint.spec.model_name, safe='')}"
    return f"{endpoint.local_url if endpoint.is_local else _reachable(endpoint, path)}{path}"


def _reachable(endpoint: Endpoint, path: str) -> str:
    """Return the address of an endpoint of a cluster, if this machine can connect to it."""
    url = urlsplit(endpoint.url)
    try:
        socket.create_connection((url.hostname or "", url.port or 80), _CONNECT_S).close()
    except OSError as error:
        spec = endpoint.spec
        command = engine_of(endpoint.workspace).forward_command(endpoint.name, spec.port)
        there = f"{spec.scheme}://127.0.0.1:{spec.port}{path}"
        raise ServingError(
            f"the endpoint {endpoint.name} cannot be reached from this machine at {url.netloc}",
            hint=command and f"run '{command}' and use {there}",
        ) from error
    return endpoint.url
