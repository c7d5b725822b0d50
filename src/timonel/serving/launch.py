"""Start a server process from Python, a notebook or the command line.

The calling process never imports TensorFlow. A crash of the server raises an error here and does
not kill the notebook.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from timonel.arguments import checked
from timonel.errors import ServingError
from timonel.options import documented
from timonel.processes.spawn import describe_exit
from timonel.serving.credentials import Credentials
from timonel.serving.handle import Server
from timonel.serving.parent import supervise
from timonel.serving.process_io import configure_logging
from timonel.serving.serve_options import Reference, ServeOptions
from timonel.serving.serve_settings import settings_and_workspace
from timonel.serving.server_records import parse_record, running_servers
from timonel.serving.settings.server import ServerSettings
from timonel.storage import Workspace

_LOGS_KEPT = 10
_TAIL = 20
_WARNING = re.compile(r"[\d-]+ [\d:,]+ WARNING timonel\.[\w.]+: (?P<message>.+)")
"""A warning in the log of a server."""


@checked()
@documented(ServeOptions)
def serve(
    model: Reference | Sequence[Reference] = (),
    *,
    workspace: Workspace | Reference | None = None,
    block: bool = True,
    on_ready: Callable[[Server], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    **options: Unpack[ServeOptions],
) -> Server:
    """Serve models over TensorFlow Serving's REST and gRPC APIs.

    New versions are loaded while the server runs; deleting the newest version falls back to the
    previous one. Without API keys or client certificates, everyone who can reach the ports
    may use the server.

    Args:
        model: A model of the workspace (``digits``), one of its versions (``digits/3``), a folder
            of numbered versions, its URI in a bucket (``s3://models/digits``), or several of these.
        workspace: The workspace, or its path.
        block: Return when the server has ended, instead of when it is ready.
        on_ready: Called with the server once it is ready, before blocking.
        on_warning: Called with each warning that the server logs before it is ready, such as what
            it waits for.
        **options: See `ServeOptions`.

    Raises:
        NotFoundError: The model does not exist or has no version.
        SpecError: An option has an invalid value.
        ServingError: A port is in use, or no version can be loaded; with ``block``, also if the
            server was killed or failed.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    settings, place = settings_and_workspace(several, workspace, options)
    detach = options.get("detach", False)
    server = launch(settings, place, detach=detach, on_warning=on_warning)
    code = 0
    try:
        if on_ready is not None:
            on_ready(server)
        if block:
            code = server.wait()
    except KeyboardInterrupt:
        code = server.stop()
        if not block:
            raise
        # Once announced, the server shuts down cleanly on Ctrl-C, however early.
    except BaseException:
        if not detach:  # a detached one outlives the pipe to which its addresses were printed
            server.stop()
        raise
    if code:
        raise ServingError(
            f"The server {describe_exit(code)}",
            hint=f"start it again; its log is {server.log_path}",
        )
    return server


def run_server(
    models: Sequence[Reference],
    *,
    workspace: Workspace | Reference | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve until SIGTERM, and log to standard error; restart the server after a crash.

    Must be called in the main thread of a dedicated process, such as that of a container.
    """
    settings, _ = settings_and_workspace(models, workspace, options)
    configure_logging()
    supervise(settings)


def launch(
    settings: ServerSettings,
    workspace: Workspace,
    *,
    detach: bool = False,
    on_warning: Callable[[str], None] | None = None,
) -> Server:
    """Start a server process and return once it is ready; `serve` explains ``on_warning``."""
    log = _new_log(workspace.servers / "logs")
    read_end, write_end = os.pipe()
    try:
        process = _spawn(log, write_end)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    orders = {
        "settings": settings.model_dump(mode="json"),
        "report": write_end,
        "detach": detach,
        "log": str(log),
    }
    try:
        _send_request(process, orders, keep_open=not detach)
        report = _read_report(read_end, log, on_warning)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(read_end)
    if "ready" in report:
        return Server(process, parse_record(report["ready"]), log, _owner_credentials(settings))
    raise _failure(process, report, log)


def _owner_credentials(settings: ServerSettings) -> Credentials:
    """Return the credentials with which this process accesses its server."""
    tls = settings.access.tls
    return Credentials(
        settings.access.owner_key, certificate=None if tls is None else tls.certificate
    )


def _spawn(log: Path, report: int) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "timonel.serving.parent"],
            # Unbuffered: no data is left to flush to a process that has died.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(report,),
            # Ctrl-C in a terminal goes to every process of the group. A new session lets the parent
            # forward it instead, so that the server gets one signal and time to drain.
            start_new_session=True,
        )


def _send_request(
    process: subprocess.Popen[bytes], orders: dict[str, Any], *, keep_open: bool
) -> None:
    assert process.stdin is not None
    # If the process died at once, its missing report tells so.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(orders).encode() + b"\n")
    if not keep_open:
        process.stdin.close()


def _read_report(
    descriptor: int, log: Path, on_warning: Callable[[str], None] | None
) -> dict[str, Any]:
    content = b""
    with log.open(encoding="utf-8", errors="replace") as lines:
        while not content.endswith(b"\n"):
            # Wake up every second, so that Python handles Ctrl-C.
            readable, _, _ = select.select([descriptor], [], [], 1.0)
            if not readable:
                for found in filter(None, map(_WARNING.match, lines)):
                    if on_warning is not None:
                        on_warning(found["message"])
                continue
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return {}
            content += chunk
    report: dict[str, Any] = json.loads(content)
    return report


def _failure(process: subprocess.Popen[bytes], report: dict[str, Any], log: Path) -> ServingError:
    code = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    if "error" in report:
        return ServingError(report["error"], hint=report["hint"])
    lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    return ServingError(
        f"The server {describe_exit(code)} before it was ready. Last line of its log: {last}",
        hint=f"see {log}",
    )


def _new_log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    in_use = {record.log for record in running_servers(folder.parent)}
    old = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in old[: -_LOGS_KEPT + 1]:
        if str(path) not in in_use:
            path.unlink(missing_ok=True)
    return folder / f"{uuid.uuid4().hex[:12]}.log"
