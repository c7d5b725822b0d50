"""Check specifications of endpoints before they are recorded."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping

from pydantic import ValidationError

from timonel.endpoints.access_files import read_files
from timonel.endpoints.control.plan import autoscaler_spec
from timonel.endpoints.engine import documents_of, engine_of
from timonel.endpoints.folder import list_endpoints
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import ServiceEngine
from timonel.errors import NotFoundError, ServingError, SpecError, TimonelError
from timonel.options import flag_of, options_of
from timonel.serving.references import resolve, versions_at
from timonel.serving.serve_options import OF_ENDPOINTS, ServeOptions
from timonel.storage import Workspace, is_local

FIRST_PORT = 8501
_PORTS = 100
_RESERVED_ARGS = (
    "--host", "--rest-port", "--grpc-port", "--version", "--detach", "--config", "--allow-host",
    "--allow-reload", "--api-keys", "--tls-cert", "--tls-key", "--tls-client-ca", "--drain-s",
    *OF_ENDPOINTS,
)  # fmt: skip

_RULES: Mapping[tuple[int | str, ...], tuple[str, str]] = {
    ("name",): (
        "--name",
        "lowercase letters, digits and hyphens, at most 30, with a letter first",
    ),
    ("port",): ("--port", "a number from 1 to 65535"),
}
"""Options and rules of fields whose pattern would say less."""

_BOUNDS = {"min_replicas": "--min", "max_replicas": "--max"}


def validated(fields: Mapping[str, object]) -> EndpointSpec:
    """Return a specification."""
    try:
        return EndpointSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] in _RULES:
            flag, rule = _RULES[first["loc"]]
            raise SpecError(f"{flag}: expected {rule}, got {first['input']!r}") from error
        where = ".".join(str(part) for part in first["loc"])
        reason = str(first["msg"]).removeprefix("Value error, ")
        if first["loc"] == ("scaling",):
            for field, flag in _BOUNDS.items():
                reason = reason.replace(field, flag)
            problem, _, cure = reason.partition("; ")
            raise SpecError(problem, hint=cure or None) from error
        raise SpecError(f"invalid endpoint: {where + ': ' if where else ''}{reason}") from error


def check_spec(spec: EndpointSpec, workspace: Workspace) -> None:
    """Check the versions, files and server arguments of a specification."""
    _check_requests(spec)
    flags = {flag_of(name, option) for name, (_, option) in options_of(ServeOptions).items()}
    for argument in spec.server_args:
        flag = argument.partition("=")[0]
        if flag in _RESERVED_ARGS:
            raise SpecError(
                f"the argument {argument} belongs to the gateway",
                hint="use the options of 'timonel deploy'",
            )
        if flag.startswith("--") and not flags & {flag, flag.replace("--no-", "--", 1)}:
            raise SpecError(
                f"servers have no option {flag}", hint="'timonel serve --help' lists them"
            )
    for version in spec.traffic.versions:
        _check_version(spec.model, workspace, version)
    if engine_of(workspace).is_one_machine:
        read_files(spec.access, spec.access.files)
    elif is_local(spec.model):
        raise SpecError(
            f"servers of a cluster cannot read the model {spec.model}",
            hint="publish it in the workspace's bucket: timonel models add NAME FOLDER",
        )


def check_autoscaler(spec: EndpointSpec, engine: ServiceEngine) -> None:
    """Have a cluster that scales the versions itself check the rules."""
    rules = autoscaler_spec(spec.scaling)
    if rules is not None:
        engine.check_autoscaler(rules)


def _check_version(model: str, workspace: Workspace, version: int) -> None:
    found = resolve(model, workspace, version)
    if is_local(found.base_path):
        return
    known = versions_at(found.base_path)
    if version not in known:
        raise NotFoundError(
            f"{found.name} has no version {version} in {found.base_path}",
            hint=f"it has {', '.join(map(str, known))}" if known else "export one first",
        )


def _check_requests(spec: EndpointSpec) -> None:
    """Check that a memory target in percent has a requested amount; CPUs default to one."""
    scaling = spec.scaling
    metrics = {each.metric for each in scaling.further_metrics}
    if scaling.metric == "memory" and scaling.target_unit == "percent":
        metrics.add("memory")
    if "memory" in metrics and spec.resources.memory_bytes is None:
        raise SpecError(
            "a memory target in percent needs the memory that a replica requests",
            hint="give --memory, such as 2GiB, or the target in MiB",
        )


def free_port(host: str, workspace: Workspace) -> int:
    """Return the first port that is free and not assigned to an endpoint."""
    taken = _ports(workspace).values()
    is_here = engine_of(workspace).is_one_machine
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS):
        if port not in taken and not (is_here and not _is_free(host, port)):
            return port
    raise ServingError(
        f"the ports {FIRST_PORT} to {FIRST_PORT + _PORTS - 1} are in use", hint="give --port"
    )


def check_port(host: str, port: int, workspace: Workspace) -> None:
    """Check that an endpoint can listen at a port."""
    for name, taken in _ports(workspace).items():
        if taken == port:
            raise ServingError(
                f"the endpoint {name} has the port {port}", hint="give another --port"
            )
    if engine_of(workspace).is_one_machine and not _is_free(host, port):
        raise ServingError(f"the port {port} of {host} is in use", hint="give another --port")


def _ports(workspace: Workspace) -> dict[str, int]:
    """Return ports by endpoint; endpoints with unreadable documents are left out."""
    found = {}
    for each in list_endpoints(documents_of(workspace)):
        with contextlib.suppress(TimonelError):
            found[each.name] = each.revision().spec.port
    return found


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise ServingError(f"cannot listen at {host}:{port}: {error}") from error
    return True
