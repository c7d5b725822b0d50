"""Credentials of registries, from the files and helpers of Docker and Podman.

Sources: docs.docker.com/reference/cli/docker/login (``auths``, ``credHelpers``, ``credsStore``) and
containers-auth.json(5).
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.errors import InputError

_HELPER_S = 30.0
_USER = re.compile(r"(?<=://)[^/\s]*@")
_HUB_KEYS = ("https://index.docker.io/v1/", "docker.io", "index.docker.io")


@dataclass(frozen=True)
class RegistryCredentials:
    """User and password of a registry, or an identity token instead of a password."""

    user: str
    password: str = field(repr=False)

    @property
    def is_token(self) -> bool:
        """Whether the password is an OAuth2 refresh token."""
        return self.user == "<token>"

    @property
    def basic(self) -> str:
        """Value of a header for basic authentication."""
        pair = f"{self.user}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def credentials_for(
    host: str, environment: Mapping[str, str], home: Path | None = None
) -> RegistryCredentials | None:
    """Return the credentials for a registry; None if no file has any."""
    keys: tuple[str, ...] = (host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/")
    if host == "registry-1.docker.io":
        keys = (*_HUB_KEYS, *keys)
    for path in _files(environment, home or Path.home()):
        config = _read(path)
        for number, key in enumerate(keys):
            if (found := _credentials(config, key, ask=number == 0)) is not None:
                return found
    return None


def without_user(text: str) -> str:
    """Return a text without the users and passwords of its URLs."""
    return _USER.sub("***@", text)


def _files(environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    if explicit := environment.get("REGISTRY_AUTH_FILE"):
        yield Path(explicit)
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", hint="log in again") from error
    return content if isinstance(content, dict) else {}


def _credentials(config: Mapping[str, Any], key: str, *, ask: bool) -> RegistryCredentials | None:
    auths = config.get("auths") or {}
    helper = (config.get("credHelpers") or {}).get(key)
    if helper is None and ask and not auths.get(key):
        helper = config.get("credsStore")
    if helper is not None:
        return _ask(f"docker-credential-{helper}", key)
    entry = auths.get(key) or {}
    if token := entry.get("identitytoken"):
        return RegistryCredentials("<token>", token)
    if not (auth := entry.get("auth")):
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise InputError(f"the credentials of {key} are damaged", hint="log in again")
    return RegistryCredentials(user, password.rstrip("\0"))


def _ask(program: str, key: str) -> RegistryCredentials | None:
    try:
        answer = subprocess.run(
            [program, "get"],
            input=key.encode(),
            capture_output=True,
            timeout=_HELPER_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"the credential helper {program} is not installed", hint="install it, or log in again"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"the credential helper {program} failed: {error}") from error
    if answer.returncode != 0:
        text = (answer.stdout or answer.stderr).decode(errors="replace").strip()
        if "credentials not found" in text:
            return None
        raise InputError(f"the credential helper {program} failed: {text}", hint="log in again")
    try:
        found = json.loads(answer.stdout)
        return RegistryCredentials(found["Username"], found["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the credential helper {program} sent no credentials") from error
