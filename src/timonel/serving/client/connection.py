"""Client connection to a REST server, and the model signature that it reports."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self
from urllib.parse import quote, urlsplit

from timonel.errors import ServingError, SpecError
from timonel.serving.credentials import ANONYMOUS, CA_VARIABLE, Credentials
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, display_name

_TIMEOUT_S = 120.0


_WAYS = "with --api-key-file or TIMONEL_API_KEY, or as api_key in Python"


class HttpError(ServingError):
    """A server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        if status == 401:
            # Servers and gateways each have their own words for it.
            super().__init__("authentication failed", hint=f"give a valid key or token {_WAYS}")
        elif status == 403:
            hint = f"give a key or token that may use this model {_WAYS}"
            super().__init__(f"permission denied: {message.rstrip('.')}", hint=hint)
        else:
            super().__init__(f"the server answered with an error: {message}")
        self.status = status


class UntrustedError(ServingError):
    """The certificate of a server is not trusted."""


class HttpConnection:
    """A connection that is kept open between requests. Not thread-safe."""

    def __init__(self, url: str, caller: Credentials = ANONYMOUS) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", **caller.headers}
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SpecError(f"expected an address such as http://127.0.0.1:8501, got {url}")
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S, context=caller.context()
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON at ``path``."""
        return self._request("GET", path, None)

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send JSON to ``path`` and return the JSON response."""
        return self._request("POST", path, json.dumps(content).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        try:
            self._connection.request(method, path, body=body, headers=self._headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise UntrustedError(
                    f"the certificate of {self._url} is not trusted: {error.verify_message}",
                    hint=f"give that of its authority with --tls-ca or {CA_VARIABLE}",
                ) from error
            hint = "start one with 'timonel serve NAME', or check the address"
            # Servers with TLS close the connection, or answer with an alert.
            cut = isinstance(error, http.client.BadStatusLine | ConnectionResetError)
            if cut and self._url.startswith("http://"):
                hint = f"if it uses TLS, use {self._url.replace('http', 'https', 1)}"
            raise ServingError(
                f"cannot reach a server at {self._url}: {_reason(error)}", hint=hint
            ) from error
        return self._parse(response.status, answer)

    def _parse(self, status: int, answer: bytes) -> dict[str, Any]:
        try:
            content = json.loads(answer)
        except ValueError:
            content = None
        if not isinstance(content, dict) and status in {401, 403}:
            # Gateways answer so in plain text.
            text = " ".join(answer[:200].decode(errors="replace").split())
            raise HttpError(status, f"HTTP {status}: {text}" if text else f"HTTP {status}")
        if not isinstance(content, dict):
            raise ServingError(
                f"{self._url} did not answer with JSON: HTTP {status} with {answer[:60]!r}",
                hint="check that a TensorFlow Serving REST server listens there",
            )
        if status != 200:
            raise HttpError(status, str(content.get("error", f"HTTP {status}")))
        return content


def model_path(model: str, version: int | str | None = None) -> str:
    """Return the path of a model, or of one version of it, by number or label."""
    path = f"/v1/models/{quote(model, safe='')}"
    if isinstance(version, str):
        return f"{path}/labels/{quote(version, safe='')}"
    return path if version is None else f"{path}/versions/{version}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


_IMAGE_NAMES = ("_bytes", "image")


class InstanceKind(Enum):
    """Kind of instance that a model expects."""

    IMAGE = "image files"
    ROW = "a row of named values"
    TENSOR = "a tensor"


@dataclass(frozen=True)
class Input:
    """An input of a signature.

    Unknown sizes of the shape are -1; the shape is None for an unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def instance_shape(self) -> tuple[int, ...]:
        """The shape without the batch dimension."""
        return self.shape[1:] if self.shape else ()

    def __str__(self) -> str:
        sizes = ["?" if size < 0 else str(size) for size in self.shape or ()]
        return f"{self.name} ({display_name(self.dtype)} [{', '.join(sizes)}])"


@dataclass(frozen=True)
class ClientSignature:
    """Default signature of a version."""

    model: str
    version: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> InstanceKind:
        """Kind of instance that the model expects."""
        if len(self.inputs) > 1:
            return InstanceKind.ROW
        only = self.inputs[0]
        if is_image(only.name, only.dtype):
            return InstanceKind.IMAGE
        is_value = only.shape is not None and only.instance_shape in {(), (1,)}
        return InstanceKind.ROW if is_value else InstanceKind.TENSOR

    @property
    def only_input(self) -> str | None:
        """Name of the input, if there is exactly one."""
        return self.inputs[0].name if len(self.inputs) == 1 else None

    @property
    def description(self) -> str:
        """The inputs as text, for messages."""
        return ", ".join(map(str, self.inputs))


def is_image(name: str, dtype: str) -> bool:
    """Guess by dtype and name whether an input takes encoded images."""
    return dtype == STRING and any(part in name for part in _IMAGE_NAMES)


def parse_signature(metadata: Mapping[str, Any]) -> ClientSignature:
    """Parse the response to ``GET /v1/models/<name>/metadata``."""
    spec = metadata["model_spec"]
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    default = signatures.get(DEFAULT_SIGNATURE, {})
    if not default.get("inputs"):
        raise ServingError(
            f"{spec['name']} has no signature {DEFAULT_SIGNATURE} with inputs; "
            f"its signatures: {', '.join(sorted(signatures)) or 'none'}",
            hint="use a client of your own, and name the signature",
        )
    return ClientSignature(
        model=spec["name"],
        version=int(spec["version"]),
        inputs=tuple(_input(name, info) for name, info in sorted(default["inputs"].items())),
        outputs=tuple(sorted(default["outputs"])),
    )


def _input(name: str, info: Mapping[str, Any]) -> Input:
    shape = info["tensor_shape"]
    sizes = None if shape["unknown_rank"] else tuple(int(dim["size"]) for dim in shape["dim"])
    return Input(name, info["dtype"], sizes)
