"""Specification and status of services.

A service is a number of identical, long-running processes (replicas) that accept connections, such
as model servers. A job ends; a service runs until it is deleted.

The specification is declarative: `ServiceEngine.apply` records it, and the engine keeps the
replicas as requested. References of the form ``$(NAME)`` in arguments are replaced by variables of
the replica's environment, and ``$$`` by ``$``, as in Kubernetes. The engine sets these variables:

    HOST               address to listen on; unix:FOLDER for the Unix sockets FOLDER/<name>.sock
    PORT_<NAME>        port of that name, in upper case, with underscores for hyphens
    PORT               the first port
    SHARED             folder that it shares with its sidecar, if the specification has one
    TIMONEL_WORKSPACE  the workspace, if the specification has one
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from timonel.engines.resources import Observed, Placement, Requested, Resources, Volume
from timonel.processes.spawn import exit_code_in
from timonel.units import Seconds

_FAILED_STARTS = 3
"""Failed starts after which the replica is the cause, not a file that comes late."""
_REFERENCE = re.compile(r"\$\$|\$\((\w+)\)")

PortName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$")]
HttpPath = Annotated[str, StringConstraints(pattern=r"^/[!-~]*$")]


class HealthCheck(Requested):
    """Readiness and liveness of a replica, checked over HTTP or TCP."""

    port: PortName | None = Field(default=None, description="Checked port; None: the first.")
    ready_path: HttpPath | None = Field(
        default=None,
        description="Path whose status is 200 to 399 once the replica is ready; None: the replica "
        "is ready once it accepts TCP connections.",
    )
    alive_path: HttpPath | None = Field(
        default=None,
        description="Path that always answers while the replica works; None: hangs are not "
        "detected.",
    )
    period_s: Seconds = Field(default=1.0, gt=0, description="Time between checks.")
    timeout_s: Seconds = Field(default=1.0, gt=0, description="Time limit of an answer.")


class Sidecar(Requested):
    """Program that runs beside each replica, on the same machine, and is restarted by itself.

    It ends after its replica.
    """

    name: PortName = Field(description="Name, such as that of its program.")
    command: tuple[str, ...] = Field(min_length=1, description="Program with its arguments.")
    ports: Mapping[PortName, Annotated[int, Field(gt=0, lt=65536)]] = Field(
        default_factory=dict, description="Ports by name, fixed by its arguments."
    )
    ready_path: HttpPath | None = Field(
        default=None, description="Path at its first port that answers once it is ready."
    )
    resources: Resources = Field(default=Resources(), description="Its resources.")


class AutoscalerSpec(Requested):
    """Rules by which the cluster itself scales a service, as in a HorizontalPodAutoscaler."""

    least: int = Field(ge=1, description="Smallest number of replicas.")
    most: int = Field(ge=1, description="Largest number of replicas.")
    metrics: tuple[Mapping[str, Any], ...] = Field(description="Metrics of autoscaling/v2.")
    behavior: Mapping[str, Any] = Field(default_factory=dict, description="Speed of changes.")


class ServiceSpec(Requested):
    """Service specification: one program, run as identical replicas."""

    name: str = Field(
        pattern=r"^[a-z]([a-z0-9-]{0,43}[a-z0-9])?$", description="Unique name of the service."
    )
    revision: int = Field(
        default=1, ge=1, description="Revision number; each change except of `replicas` needs one."
    )
    module: str | None = Field(
        default=None, description="Python module that each replica runs with -m."
    )
    command: tuple[str, ...] = Field(
        default=(), description="Program with its first arguments, instead of a module."
    )
    args: tuple[str, ...] = Field(default=(), description="Arguments.")
    env: Mapping[str, str] = Field(default_factory=dict, description="Environment variables.")
    ports: tuple[PortName, ...] = Field(
        default=("http",), min_length=1, description="Names of the ports of a replica."
    )
    sockets: str | None = Field(
        default=None,
        description="Private folder in which replicas listen on Unix sockets, on one machine; "
        "None: on ports.",
    )
    replicas: int | None = Field(
        default=None, ge=0, description="Number of replicas; None: as scaled, at first one."
    )
    sidecar: Sidecar | None = Field(
        default=None, description="Program beside each replica; not on every engine."
    )
    uses_engine: bool = Field(
        default=False,
        description="Whether replicas manage services of this engine, and need the rights to.",
    )
    check: HealthCheck = Field(default_factory=HealthCheck, description="Health check.")
    start_timeout_s: Seconds = Field(
        default=180.0,
        gt=0,
        description="Time in which a replica must get ready; then it is killed and restarted.",
    )
    hang_timeout_s: Seconds = Field(
        default=10.0,
        gt=0,
        description="A replica whose `alive_path` does not answer for this long is killed and "
        "restarted.",
    )
    restart_delay_s: Seconds = Field(
        default=60.0,
        gt=0,
        description="Longest time between the end of a replica and its next start; the time "
        "doubles with each failure in a row.",
    )
    stop_delay_s: Seconds = Field(
        default=0.0,
        description="Time from the state `stopping` to SIGTERM, in which clients notice that the "
        "replica is no longer ready; a preStop sleep in Kubernetes.",
    )
    stop_grace_s: Seconds = Field(default=30.0, description="Time from SIGTERM to SIGKILL.")
    workspace: str | None = Field(default=None, description="URI of the workspace.")
    image: str | None = Field(default=None, description="Container image of replicas.")
    volumes: tuple[Volume, ...] = Field(default=(), description="Storage mounted into replicas.")
    resources: Resources = Field(default=Resources(), description="Resources of each replica.")
    placement: Placement = Field(default=Placement(), description="Machines that may run them.")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.module is None) == (not self.command):
            raise ValueError("a service needs either a module or a command")
        if len(set(self.ports)) != len(self.ports):
            raise ValueError(f"duplicate ports: {list(self.ports)}")
        if self.check.port is not None and self.check.port not in self.ports:
            raise ValueError(f"the checked port {self.check.port} is not one of its ports")
        known = {*port_variables(dict.fromkeys(self.ports, 0)), *self.env}
        for text in (*self.command, *self.args):
            for name in _REFERENCE.findall(text):
                # Other names may be variables of the machine.
                if name.startswith("PORT") and name not in known:
                    raise ValueError(f"$({name}) in {text!r} is none of its ports: {sorted(known)}")
        return self

    @property
    def template(self) -> str:
        """Digest of everything except the number of replicas."""
        return self._digest_without({"replicas"})

    @property
    def digest(self) -> str:
        """Digest of everything except the number of replicas and the revision number."""
        return self._digest_without({"replicas", "revision"})

    def _digest_without(self, fields: set[str]) -> str:
        # Without defaults: a later release may add fields.
        body = self.model_dump(mode="json", exclude=fields, exclude_defaults=True)
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def checked_port(self) -> str:
        """Name of the port that is checked."""
        return self.check.port or self.ports[0]


def port_variables(ports: Mapping[str, int]) -> dict[str, str]:
    """Return the environment variables of ports, in the order of the specification."""
    named = {f"PORT_{name.upper().replace('-', '_')}": str(port) for name, port in ports.items()}
    return {"PORT": next(iter(named.values())), **named}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by variables and ``$$`` by ``$``; unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


ReplicaState = Literal["starting", "ready", "unready", "restarting", "stopping", "lost"]
"""State of a replica.

``unready``: it was ready, and its checks fail. ``restarting``: it has ended and waits for its next
start. ``stopping``: it finishes its requests. ``lost``: it ended while nothing watched it.
"""


class ReplicaStatus(Observed):
    """Observed status of a replica.

    Attributes:
        name: Unique name, never reused.
        revision: Revision of its specification.
        addresses: ``host:port`` or ``unix:PATH`` by name of port; ports change at a restart.
        restarts: Restarts so far.
        message: Reason of its last failure.
        since: Time of the last change of its state, in seconds since the epoch.
    """

    name: str
    revision: int
    state: ReplicaState
    addresses: Mapping[str, str] = Field(default_factory=dict)
    restarts: int = 0
    message: str | None = None
    since: float = 0.0

    @property
    def start_failure(self) -> str | None:
        """Message of a replica whose program ends with an error at each start; None otherwise.

        A program that was killed, or that has failed less often, may still start.
        """
        ends = {"starting": self.restarts, "restarting": self.restarts + 1}.get(self.state, 0)
        is_error = bool(exit_code_in(self.message or ""))
        return self.message if is_error and ends >= _FAILED_STARTS else None


class ServiceState(StrEnum):
    """State of a service.

    ``unresponsive``: its supervisor runs but does not answer, so nothing is checked or restarted.
    ``down``: no supervisor runs, after a kill or a reboot; `apply` or `scale` starts one.
    """

    ACTIVE = "active"
    DELETING = "deleting"
    UNRESPONSIVE = "unresponsive"
    DOWN = "down"


class OutsideAddress(Observed):
    """Address at which a proxy of the cluster accepts requests from outside.

    Attributes:
        host: Name of the host; the port and TLS are the proxy's.
        message: What keeps the proxy from passing requests on; None if nothing is known.
    """

    host: str
    message: str | None = None


class ServiceStatus(Observed):
    """Observed status of a service.

    Attributes:
        digest: `ServiceSpec.digest` of the specification that was applied last.
        requested: Requested number of replicas.
        replicas: Replicas of all revisions, oldest first.
        message: Why the service is down or unresponsive.
    """

    name: str
    revision: int
    digest: str = ""
    state: ServiceState
    requested: int
    replicas: tuple[ReplicaStatus, ...] = ()
    message: str | None = None

    @property
    def ready(self) -> tuple[ReplicaStatus, ...]:
        """Replicas that accept requests, of any revision."""
        return tuple(replica for replica in self.replicas if replica.state == "ready")

    @property
    def start_failure(self) -> str | None:
        """Why none of its replicas can start; None while one is ready or may still start."""
        running = [each for each in self.replicas if each.state not in ("stopping", "lost")]
        failures = [each.start_failure for each in running]
        return failures[-1] if failures and all(failures) else None

    @property
    def is_running(self) -> bool:
        """Whether its supervisor runs; one that does not answer may still do its work."""
        return self.state in (ServiceState.ACTIVE, ServiceState.UNRESPONSIVE)

    @property
    def is_settled(self) -> bool:
        """Whether exactly the requested replicas of this revision run, and all are ready.

        Lost replicas do not count: a cluster has replaced those of a lost node.
        """
        running = [replica for replica in self.replicas if replica.state != "lost"]
        return (
            self.state is ServiceState.ACTIVE
            and len(running) == len(self.ready) == self.requested
            and all(replica.revision == self.revision for replica in running)
        )
