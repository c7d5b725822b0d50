"""Refuse files and folders that another user could have prepared for this one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from timonel.errors import InputError

_ROOT = 0


def check_own(path: Path, hint: str, found: os.stat_result | None = None) -> None:
    """Refuse a path that belongs to another user than this one and root, or that all may write.

    As in git, root also accepts those of the user who called sudo.

    Args:
        found: Its status, if it is open; a path may be replaced meanwhile.
    """
    found = found or path.stat()
    if not hasattr(os, "geteuid"):
        return
    own = {_ROOT, os.geteuid()}
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() == _ROOT and caller.isdecimal():
        own.add(int(caller))
    if found.st_uid not in own:
        raise InputError(f"{path} belongs to another user (ID {found.st_uid})", hint=hint)
    if found.st_mode & stat.S_IWOTH:
        raise InputError(f"all users can write {path}", hint=hint)
