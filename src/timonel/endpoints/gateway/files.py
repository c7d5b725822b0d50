"""Write Envoy's configuration: each file in a folder that Envoy watches, replaced by rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel.endpoints.gateway.parts import Json
from timonel.errors import InputError


class ConfigFiles:
    """The configuration on disk. It may contain API keys: only its owner can read it.

    Envoy keeps its last configuration if a file is invalid or missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written: dict[str, str] = {}

    def write(self, files: Mapping[str, Json]) -> list[str]:
        """Write the files that have changed, and return their names."""
        changed = []
        for name, content in files.items():
            text = json.dumps(content)
            if self._written.get(name) != text:
                self._replace(name, text)
                self._written[name] = text
                changed.append(name)
        for name in self._obsolete(files):
            shutil.rmtree(self._root / name, ignore_errors=True)
            self._written.pop(name, None)
        return changed

    def rewrite(self, name: str) -> None:
        """Write a file again, so that Envoy tries again what failed."""
        if (text := self._written.get(name)) is not None:
            self._replace(name, text)

    def version(self, name: str) -> str | None:
        """Return the ``version_info`` of a written file; None if it is not written."""
        text = self._written.get(name)
        return None if text is None else str(json.loads(text)["version_info"])

    def read(self, name: str) -> Json:
        """Return the content of a file, also of an earlier process; empty if it is unreadable."""
        try:
            found = json.loads((self._root / name / "current.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_bootstrap(self, content: Mapping[str, Any]) -> Path:
        """Write the bootstrap configuration and return its path."""
        self._replace("bootstrap", json.dumps(content))
        return self._root / "bootstrap" / "current.json"

    def _obsolete(self, files: Mapping[str, Json]) -> list[str]:
        if not self._root.is_dir():
            return []
        known = {*files, "bootstrap"}
        return [path.name for path in self._root.iterdir() if path.name not in known]

    def _replace(self, name: str, text: str) -> None:
        # No fsync: after a crash of the machine, everything is written again.
        folder = self._root / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = folder / ".next.json"
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            aside.replace(folder / "current.json")
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror}") from error
