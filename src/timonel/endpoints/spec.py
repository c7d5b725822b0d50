"""Specification of an endpoint: versions of a model behind one address."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.engines.resources import Requested, Resources
from timonel.serving.auth.origin_check import is_loopback
from timonel.units import Seconds


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"expected a network such as 10.0.0.0/8, got {text!r}") from error


def _rate(text: str) -> str:
    if _RATE.fullmatch(text) is None:
        raise ValueError(f"expected a rate such as 100/s, 600/min or 100/s:20, got {text!r}")
    return text


_RATE = re.compile(r"([1-9][0-9]{0,8})/(s|min|h)(?::([1-9][0-9]{0,8}))?")

EndpointName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")]
"""Name of an endpoint. With a version appended, it names a service."""
Version = Annotated[int, Field(ge=1)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9-]{1,64}$")]
HostName = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?[a-zA-Z0-9]([a-zA-Z0-9.-]{0,250}[a-zA-Z0-9])?$", to_lower=True
    ),
]
Network = Annotated[str, AfterValidator(_network)]
Rate = Annotated[str, AfterValidator(_rate)]
ContentsId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]

_LONGEST_S = 7 * 86_400.0
# The port counts, too: firewalls and network policies admit clients by port.
_EXPOSURE = ("host", "port", "access", "follow")
LABEL_HEADER = "x-timonel-label"
"""Request header that names the label of a version."""


class HeaderMatch(Requested):
    """Requests with a header go to one version."""

    header: HeaderName = Field(description="Name of the header.")
    value: str = Field(description="Exact value of the header.")
    version: Version = Field(description="Version that gets these requests.")


class Sticky(Requested):
    """Each client keeps its version as long as the traffic rules do not change.

    Clients are identified by a cookie that the gateway sets, or by the value of a header.
    """

    cookie: HeaderName | None = Field(default=None, description="Name of the cookie.")
    header: HeaderName | None = Field(default=None, description="Name of the header.")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.cookie is None) == (self.header is None):
            raise ValueError("sticky traffic needs either a cookie or a header")
        return self


class Shadow(Requested):
    """Copy requests to a version and discard its responses."""

    version: Version = Field(description="Version that gets the copies.")
    percent: int = Field(default=100, ge=1, le=100, description="Percentage of requests copied.")


class Traffic(Requested):
    """Distribution of requests over versions.

    The first rule that applies decides: the label in the header ``x-timonel-label``, a matching
    header, the percentages.
    """

    percent: Mapping[Version, Annotated[int, Field(ge=0, le=100)]] = Field(
        min_length=1, description="Percentage of requests by version; they add up to 100."
    )
    labels: Mapping[Label, Version] = Field(
        default_factory=dict, description="Versions by label, such as canary."
    )
    matches: tuple[HeaderMatch, ...] = Field(default=(), description="Versions by header.")
    sticky: Sticky | None = Field(default=None, description="How clients keep their version.")
    shadow: Shadow | None = Field(default=None, description="Version that gets copies.")

    @model_validator(mode="after")
    def _check_sum(self) -> Self:
        if sum(self.percent.values()) != 100:
            raise ValueError(
                f"the percentages must add up to 100, got {sum(self.percent.values())}"
            )
        return self

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that can get requests, ascending."""
        found = {version for version, percent in self.percent.items() if percent}
        found |= set(self.labels.values()) | {match.version for match in self.matches}
        found |= {self.shadow.version} if self.shadow else set()
        return tuple(sorted(found))

    @property
    def rules(self) -> list[str]:
        """Rules besides percentages, each as a text for people."""
        found = [f"label {label}: version {version}" for label, version in self.labels.items()]
        found += [f"header {m.header}: {m.value}: version {m.version}" for m in self.matches]
        if self.sticky is not None:
            kind = "cookie" if self.sticky.cookie else "header"
            found.append(f"sticky by {kind} {self.sticky.cookie or self.sticky.header}")
        if self.shadow is not None:
            found.append(f"copies of {self.shadow.percent} % to version {self.shadow.version}")
        return found


class Tls(Requested):
    """Certificate of an endpoint."""

    cert: str = Field(description="File with the certificate chain, in PEM.")
    key: str = Field(description="File with the private key, in PEM.")


class Jwt(Requested):
    """JSON Web Tokens that an endpoint requires."""

    issuer: str = Field(description="Issuer of the tokens.")
    audience: str | None = Field(default=None, description="Required audience.")
    jwks: str = Field(
        description="File or https URL with the issuer's public keys, a JSON Web Key Set."
    )
    claims: Mapping[str, str] = Field(
        default_factory=dict,
        description="Required claims: the claim has this value, or a list that contains it.",
    )

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        url = urlsplit(self.jwks)
        is_plain = url.scheme == "http" and not is_loopback(url.hostname or "")
        if self.is_remote and (url.scheme not in {"http", "https"} or is_plain):
            raise ValueError(f"expected a file or an https URL of public keys, got {self.jwks}")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the gateway fetches the public keys."""
        return "://" in self.jwks


class Access(Requested):
    """Who may use an endpoint, checked by the gateway."""

    tls: Tls | None = Field(default=None, description="Certificate; None: no TLS.")
    api_keys: str | None = Field(
        default=None, description="File of API keys, one 'client=key' per line."
    )
    jwt: Jwt | None = Field(default=None, description="Required tokens.")
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Accepted Host headers besides loopback names, on a loopback address.",
    )
    proxies: tuple[Network, ...] = Field(
        default=(), description="Networks of proxies whose X-Forwarded-For is believed."
    )
    contents: ContentsId | None = Field(
        default=None,
        description="Confidential document with the contents of these files, as they were at the "
        "deployment on other machines; None: the files themselves are read.",
    )

    @property
    def files(self) -> frozenset[str]:
        """Names of the fields with files."""
        jwt = None if self.jwt is None or self.jwt.is_remote else self.jwt
        found = {"tls": self.tls, "api_keys": self.api_keys, "jwt": jwt}
        return frozenset(name for name, value in found.items() if value is not None)


class Limits(Requested):
    """Limits of the gateway."""

    timeout_s: Seconds = Field(
        default=300.0,
        gt=0,
        le=_LONGEST_S,
        description="Time for a response, including a cold start.",
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Largest number of client connections; others are closed."
    )
    max_held: int = Field(
        default=1_000, ge=1, description="Largest number of requests waiting for a first replica."
    )
    max_header_kib: int = Field(
        default=60, ge=1, le=8192, description="Largest size of request headers."
    )
    header_timeout_s: Seconds = Field(
        default=10.0,
        gt=0,
        le=_LONGEST_S,
        description="Time for a client to send the headers of a request.",
    )
    rate: Rate | None = Field(
        default=None,
        description="Requests of each client, such as 100/s or 600/min:20; clients are told apart "
        "by key or token, or else by address.",
    )
    total_rate: Rate | None = Field(default=None, description="Requests of all clients together.")


class EndpointSpec(Requested):
    """Complete specification of an endpoint, recorded as a revision."""

    name: EndpointName = Field(description="Unique name of the endpoint.")
    model: str = Field(description="Model of the workspace, or folder or URI of its versions.")
    traffic: Traffic = Field(description="Distribution of requests over versions.")
    follow: str | None = Field(
        default=None,
        description="Alias whose version gets all requests, also after it moves; latest: the "
        "newest version. None: the versions of the traffic, whatever is published.",
    )
    scaling: ScalingPolicy = Field(
        default_factory=ScalingPolicy, description="Number of replicas of each version."
    )
    host: str = Field(default="127.0.0.1", description="Listen address.")
    port: int = Field(ge=1, le=65535, description="Port of REST and gRPC.")
    access: Access = Field(default_factory=Access, description="TLS, keys and tokens.")
    limits: Limits = Field(default_factory=Limits, description="Limits of the gateway.")
    server_args: tuple[str, ...] = Field(
        default=(), description="Further arguments of 'timonel serve'."
    )
    resources: Resources = Field(default=Resources(), description="Resources of each replica.")
    image: str | None = Field(default=None, description="Container image of replicas.")

    @property
    def url(self) -> str:
        """Address of REST."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def scheme(self) -> str:
        """Scheme of its addresses."""
        return "https" if self.access.tls else "http"

    def exposed_as(self, other: EndpointSpec) -> EndpointSpec:
        """Return a copy with the address, access control, rates and alias of another one."""
        rates = {"rate": other.limits.rate, "total_rate": other.limits.total_rate}
        kept = {name: getattr(other, name) for name in _EXPOSURE}
        return self.model_copy(update={**kept, "limits": self.limits.model_copy(update=rates)})

    @property
    def model_name(self) -> str:
        """Name of the model in URLs of requests."""
        return self.model.rstrip("/").rpartition("/")[2]


class ParsedRate(NamedTuple):
    """Requests in a period, and how many may come at once."""

    requests: int
    period_s: float
    burst: int

    @property
    def per_token_s(self) -> float:
        """Seconds until the next request is allowed."""
        return self.period_s / self.requests


def parse_rate(text: Rate) -> ParsedRate:
    """Parse a rate; without a number after the colon, the burst is that of one second."""
    found = _RATE.fullmatch(text)
    assert found is not None, text
    requests, period_s = int(found[1]), {"s": 1.0, "min": 60.0, "h": 3600.0}[found[2]]
    return ParsedRate(requests, period_s, int(found[3] or math.ceil(requests / period_s)))


def service_name(endpoint: str, version: int) -> str:
    """Return the name of the service of one version."""
    return f"{endpoint}-v{version}"


def version_of(endpoint: str, service: str) -> int | None:
    """Parse the version from a service name; None if it belongs to another endpoint."""
    found = re.fullmatch(rf"{re.escape(endpoint)}-v([1-9][0-9]*)", service, re.ASCII)
    return None if found is None else int(found[1])


def endpoint_of(replica: str) -> str:
    """Return the name of the endpoint that has a replica, such as ``digits-v1-2-1``."""
    return re.sub(r"-v[1-9][0-9]*-[0-9]+-[0-9]+\Z", "", replica, flags=re.ASCII)


def format_shares(percent: Mapping[int, int]) -> str:
    """Return percentages by version as the command line takes them, such as ``3=90 4=10``."""
    return " ".join(f"{version}={share}" for version, share in sorted(percent.items()))


def endpoint_name(model: str) -> str:
    """Return the default name of a model's endpoint, as a DNS label."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9-]+", "-", last).strip("-")[:30].strip("-")
