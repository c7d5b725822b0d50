"""Names, addresses and files that parts of Envoy's configuration share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timonel.endpoints.spec import Access, EndpointSpec, Traffic

Json = dict[str, Any]
Protocol = Literal["http", "grpc"]
Use = Literal["", "released", "copies"]
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")

SERVICE_HEADER = "x-timonel-service"
"""Header that names the service of a held request; the gateway replaces that of a client."""
LOST_HEADER = "x-timonel-lost"
"""Response header between the gateway's listeners: the replica died during the request."""
VERSION_HEADER = "x-timonel-version"
"""Response header with the version that answered."""
REFUSED, TIMED_OUT = 429, 408
"""Answers of the activator that clients get as 503 and 504.

Envoy takes 5xx for a failure of the activator, and would drop its headers and body.
"""
TYPE = "type.googleapis.com/envoy."
HOLD = "_hold"
"""Internal listener of requests without a replica, and its route table; no endpoint has this name.
"""
ACTIVATOR = "activator"
"""Cluster of the activator."""
BUFFER_BYTES = 1 << 20
"""What Envoy buffers of a connection before it stops reading."""
RETRIED_BYTES = 8 << 20
"""What it keeps of a request to send it to another replica: a photograph in base64, for example."""


@dataclass(frozen=True)
class Secrets:
    """Contents of the files of an endpoint's access; None where it has none.

    Attributes:
        api_keys: API keys by client.
        certificate: Certificate chain and private key, in PEM.
        jwks: Public keys of tokens, a JSON Web Key Set.
    """

    api_keys: Mapping[str, str] | None = field(default=None, repr=False)
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    jwks: str | None = None

    def has(self, access: Access) -> bool:
        """Return whether it has all that an access needs."""
        found = {"api_keys": self.api_keys, "tls": self.certificate, "jwt": self.jwks}
        return all(found[name] is not None for name in access.files)


@dataclass(frozen=True)
class EndpointRoute:
    """An endpoint as the gateway knows it; stored, so that it outlives the control plane.

    Attributes:
        spec: The endpoint.
        traffic: The traffic that applies, which may be that of an earlier revision.
        ready: Addresses of ready replicas, by version and name of port.
        secrets: Contents of the files of its access.
        compared: Two versions whose answers are compared: copies of some requests of the first go
            to the second.
    """

    spec: EndpointSpec
    traffic: Traffic
    ready: Mapping[int, Mapping[Protocol, Sequence[str]]] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    compared: tuple[int, int] | None = None

    @property
    def versions(self) -> list[int]:
        """Versions that have clusters, ascending."""
        return sorted({*self.traffic.versions, *self.ready, *self.copied})

    @property
    def copied(self) -> set[int]:
        """Versions that get copies of requests."""
        shadow = self.traffic.shadow
        return {*(self.compared or ())[1:], *((shadow.version,) if shadow else ())}


@dataclass(frozen=True)
class Places:
    """Files and sockets of the gateway.

    Attributes:
        config: Folder of the configuration.
        activator: Unix socket of the activator.
        authorities: File with the certificate authorities that this machine trusts.
    """

    config: Path
    activator: Path
    authorities: Path | None = None


def cluster_name(service: str, protocol: Protocol, use: Use = "") -> str:
    """Return the name of a cluster of a service's ready replicas.

    Args:
        use: Requests of clients by default; those that the activator ``released``, which rollouts
            must not count twice; or ``copies``, which wait for no replica.
    """
    return f"{service}-{protocol}" + (f"-{use}" if use else "")


def listener_name(spec: EndpointSpec) -> str:
    """Return the name of an endpoint's listener.

    With another address it is another listener: Envoy could not bind ``0.0.0.0`` while it still
    listens at ``127.0.0.1``.
    """
    return f"{spec.name}@{spec.host}:{spec.port}"


def endpoint_of(listener: str) -> str:
    """Return the endpoint of a listener."""
    return listener.partition("@")[0]


def table_name(endpoint: str) -> str:
    """Return the name of an endpoint's route table."""
    return f"routes-{endpoint}"


def watched_file(places: Places, name: str) -> Json:
    """Return the source of a part of the configuration."""
    folder = places.config / name
    return {
        "path_config_source": {
            "path": str(folder / "current.json"),
            "watched_directory": {"path": str(folder)},
        },
        "resource_api_version": "V3",
    }


def seconds(value: float) -> str:
    """Return a duration in Envoy's form."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def set_header(name: str, value: str) -> Json:
    """Return the addition of a header that replaces another's."""
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
