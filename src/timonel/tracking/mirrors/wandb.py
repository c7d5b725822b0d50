"""Mirror for Weights & Biases: runs, parameters, metrics, inputs and results.

Only runs that request it are copied (`timonel train --wandb`), or all of them if
``TIMONEL_MIRRORS`` lists it. With a W&B login they appear online while they run. Without one, and
with ``WANDB_MODE=offline``, they are stored below ``wandb/`` in the workspace, and ``wandb sync``
uploads them. Without a login nothing is sent over the network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import netrc
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import orjson

from timonel.errors import MissingExtraError
from timonel.storage.workspace import Workspace
from timonel.tracking.events import FINISH, Event, decode_number
from timonel.tracking.mirrors.base import Mirror, named_mirrors, subject
from timonel.tracking.records import Artifact, RunRecord, event_artifacts

Mode = Literal["online", "offline", "disabled"]

_SERVER = "https://api.wandb.ai"
_MODES: Mapping[str, Mode] = {
    "offline": "offline",
    "dryrun": "offline",
    "online": "online",
    "run": "online",
    "shared": "online",
    "disabled": "disabled",
}


_logger = logging.getLogger(__name__)

PARAM = "timonel.wandb"
"""Run parameter that requests this mirror; ``timonel.wandb_project`` sets the project."""
STEP = "timonel/step"
"""X-axis of metrics: the training step, else the epoch."""
_COPIED = frozenset({"metrics", "params", "input", "output", FINISH})
_EXIT_CODES = {"succeeded": 0, "failed": 1, "lost": 1, "stopped": 130}
_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:]")
_PROJECT_LENGTH = 128
# Copy only the record: no facts that W&B collects about the mirror's own process.
_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "email": "",
    "host": "",
    "reinit": "create_new",
    "save_code": False,
    "silent": True,
    "username": "",
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

_open_runs: dict[str, Any] = {}
"""Open W&B runs by ID. W&B opens an ID once per process, so a failed mirror's run must be closed
before the next one opens it.
"""


class WandbMirror(Mirror):
    """Copies runs to W&B. Not safe for use by several threads.

    A run's rows are numbered by their position in the record, and W&B accepts each number once, so
    repeated events have no effect. An offline run cannot be extended: it is written again.
    """

    name: ClassVar[str] = "wandb"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._run: Any = None
        self._exit_code = 0
        self._numbers: dict[bytes, int] = {}
        self._sent: set[bytes] = set()

    @classmethod
    def is_available(cls) -> bool:
        """Return whether W&B's package is installed."""
        return importlib.util.find_spec("wandb") is not None

    @property
    def wants_all(self) -> bool:
        """Whether ``TIMONEL_MIRRORS`` lists W&B."""
        return self.name in (named_mirrors() or ()) and not self._is_disabled

    def wants(self, run: RunRecord) -> bool:
        """Return whether to copy the run: with ``--wandb``, or if all are."""
        is_requested = bool(run.header.params.get(PARAM)) and not self._is_disabled
        return is_requested or self.wants_all

    @property
    def folder(self) -> Path:
        """Folder of offline runs."""
        return offline_folder(os.environ, self.workspace.root)

    def begin(self, run: RunRecord) -> bool:
        """Open the run under its timonel ID, and copy its header."""
        self._exit_code = 0
        self._sent = set()
        self._numbers = {}
        events = run.events()
        for event in events:
            self._number(event)
        if (earlier := _open_runs.pop(run.id, None)) is not None:
            earlier.finish()
        chosen = mode(os.environ)
        known = self._forget_offline(run.id) if chosen == "offline" else False
        self._run = self._open(run, chosen)
        self._run.define_metric("*", step_metric=STEP)
        self._params(run.params)
        for artifact in run.header.inputs:
            self._input(artifact)
        if chosen != "offline":
            return bool(self._run.resumed)
        if known:
            self.events(events)
        else:
            _logger.info(
                "%s is offline; upload with: wandb sync %s", run.id, Path(self._run.dir).parent
            )
        return known

    def events(self, batch: Sequence[Event]) -> None:
        """Copy parameters, metrics, inputs, outputs and the end."""
        for event in batch:
            key = _key(event)
            if event["type"] in _COPIED and key not in self._sent:
                self._sent.add(key)
                self._copy(event)

    def end(self) -> None:
        """Close the run; W&B's own process writes the remaining events."""
        _open_runs.pop(self._run.id, None)
        self._run.finish(exit_code=self._exit_code)
        self._run = None

    def _copy(self, event: Event) -> None:
        if event["type"] == "metrics":
            self._metrics(event)
        elif event["type"] == "params" and isinstance(event.get("params"), dict):
            self._params(event["params"])
        elif event["type"] == FINISH:
            self._finish(event)
        for artifact in event_artifacts([event], "input"):
            self._input(artifact)
        for artifact in event_artifacts([event], "output"):
            self._run.summary[_artifact_key("output", artifact)] = _place(artifact)

    def _metrics(self, event: Event) -> None:
        metrics = event.get("metrics")
        if not isinstance(metrics, Mapping):
            return
        values = {str(name): decode_number(value) for name, value in metrics.items()}
        row: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        found = [event[name] for name in ("step", "epoch") if isinstance(event.get(name), int)]
        row |= {STEP: found[0] if found else 0, "_timestamp": event["t"]}
        if isinstance(event.get("epoch"), int):
            row["timonel/epoch"] = event["epoch"]
        self._run.log(row, step=self._number(event), commit=True)

    def _params(self, params: Mapping[str, Any]) -> None:
        if params:
            self._run.config.update(dict(params), allow_val_change=True)

    def _input(self, artifact: Artifact) -> None:
        self._params({_artifact_key("input", artifact): _place(artifact)})

    def _finish(self, event: Event) -> None:
        status = str(event.get("status"))
        self._exit_code = _EXIT_CODES.get(status, 1)
        for name in ("status", "message", "cause"):
            if event.get(name):
                self._run.summary[f"timonel/{name}"] = str(event[name])

    def _open(self, run: RunRecord, chosen: str) -> Any:
        wandb = _wandb()
        values = {
            **_SETTINGS,
            "mode": chosen,
            "project": self._project(run),
            "resume": "allow" if chosen == "online" else None,
            "root_dir": str(self.folder.parent),
            "run_group": run.parent,
            "run_id": run.id,
            "run_job_type": run.kind,
            "run_name": run.name or run.id,
        }
        known = type(wandb.Settings()).model_fields
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in values.items() if name in known}
        _open_runs[run.id] = wandb.init(settings=wandb.Settings(**settings))
        return _open_runs[run.id]

    @property
    def _is_disabled(self) -> bool:
        return mode(os.environ) == "disabled"

    def _project(self, run: RunRecord) -> str:
        named = run.header.params.get(f"{PARAM}_project") or os.environ.get("WANDB_PROJECT")
        name = str(named or subject(self.workspace, run))
        return _NOT_IN_PROJECTS.sub("_", name)[:_PROJECT_LENGTH]

    def _forget_offline(self, run_id: str) -> bool:
        """Remove the offline copies of a run; return whether any existed."""
        found = list(self.folder.glob(f"offline-run-*-{run_id}"))
        for folder in found:
            shutil.rmtree(folder, ignore_errors=True)
        return bool(found)

    def _number(self, event: Event) -> int:
        """Return the index of a metrics event among those of its run."""
        if event["type"] != "metrics":
            return -1
        return self._numbers.setdefault(_key(event), len(self._numbers))


def mode(environ: Mapping[str, str]) -> Mode:
    """Return the mode from ``WANDB_MODE``, else online with a login."""
    named = _MODES.get(environ.get("WANDB_MODE", "").lower())
    return named or ("online" if is_logged_in(environ) else "offline")


def describe_destination(environ: Mapping[str, str], folder: str, run_id: str) -> str:
    """Return a line that describes where a run goes."""
    chosen = mode(environ)
    if chosen == "disabled":
        return "Weights & Biases: disabled by WANDB_MODE"
    if chosen == "online":
        return f"Weights & Biases: {environ.get('WANDB_BASE_URL') or _SERVER}"
    why = "set by WANDB_MODE" if environ.get("WANDB_MODE") else "no login found"
    upload = f"wandb sync {folder}/offline-run-*-{run_id}"
    return f"Weights & Biases: offline ({why}); upload with: {upload}"


def offline_folder(environ: Mapping[str, str], root: Path) -> Path:
    """Return the folder of offline runs: below ``WANDB_DIR``, else below ``root``."""
    return Path(environ.get("WANDB_DIR") or root) / "wandb"


def is_logged_in(environ: Mapping[str, str]) -> bool:
    """Return whether the environment or the netrc file has a login for W&B's server."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL") or _SERVER).netloc
    try:
        return netrc.netrc(_netrc_file(environ)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _netrc_file(environ: Mapping[str, str]) -> Path:
    if environ.get("NETRC"):
        return Path(environ["NETRC"]).expanduser()
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    usual = home / ".netrc"
    return usual if usual.exists() else home / "_netrc"


def _wandb() -> Any:
    # W&B reports its own errors over the network unless that is disabled before the import.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb  # noqa: PLC0415 - takes seconds
    except ImportError as error:
        raise MissingExtraError("mirroring runs to W&B", "wandb") from error
    return wandb


def _key(event: Event) -> bytes:
    text = orjson.dumps(event, default=str, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).digest()


def _artifact_key(way: str, artifact: Artifact) -> str:
    return f"timonel/{way}/{artifact.type}/{artifact.label}"


def _place(artifact: Artifact) -> str:
    return " ".join(filter(None, (artifact.uri, artifact.digest)))
