"""Choose online or offline runs for Weights & Biases. Pure.

Does not import W&B's package.
"""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

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


def mode(environ: Mapping[str, str]) -> Mode:
    """Return the mode from ``WANDB_MODE``, else online with a login."""
    asked = _MODES.get(environ.get("WANDB_MODE", "").lower())
    return asked or ("online" if is_logged_in(environ) else "offline")


def described(environ: Mapping[str, str], folder: str, run_id: str) -> str:
    """Return a line that describes where a run goes.

    Args:
        environ: The environment.
        folder: The folder of offline runs.
        run_id: The run.
    """
    chosen = mode(environ)
    if chosen == "disabled":
        return "Weights & Biases: off, as WANDB_MODE says"
    if chosen == "online":
        return f"Weights & Biases: {environ.get('WANDB_BASE_URL') or _SERVER}"
    why = "as WANDB_MODE says" if environ.get("WANDB_MODE") else "as nobody is logged in"
    return f"Weights & Biases: kept here, {why}; wandb sync {folder}/offline-run-*-{run_id}"


def offline_folder(environ: Mapping[str, str], root: Path) -> Path:
    """Return the folder of offline runs: below ``WANDB_DIR``, else below ``root``."""
    return Path(environ.get("WANDB_DIR") or root) / "wandb"


def is_logged_in(environ: Mapping[str, str]) -> bool:
    """Return whether a login for W&B's server exists.

    It is in the environment or in the netrc file.
    """
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL") or _SERVER).netloc
    try:
        return netrc.netrc(_file(environ)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _file(environ: Mapping[str, str]) -> Path:
    if environ.get("NETRC"):
        return Path(environ["NETRC"]).expanduser()
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    usual = home / ".netrc"
    return usual if usual.exists() else home / "_netrc"
