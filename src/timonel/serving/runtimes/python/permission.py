"""Python code of versions: the permission to run it, from options and settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import NotFoundError, SpecError
from timonel.models.inspection import PYTHON_MODEL_FILE, is_python_model
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.runtime import PythonSettings, by_model
from timonel.serving.status import Code, StatusError

HOOKS_FILE = Path("assets.extra", "hooks.py")


@dataclass(frozen=True)
class PythonCode:
    """Python code of a version.

    Args:
        is_model: Whether the model itself is a Python class.
        hooks: The file with its hooks; None if it has none.
    """

    is_model: bool
    hooks: Path | None

    def __bool__(self) -> bool:
        return self.is_model or self.hooks is not None


def python_code_of(version: Path, name: str, settings: PythonSettings) -> PythonCode:
    """Return the Python code to serve a version with.

    Args:
        version: Its folder.
        name: The name of the served model.
        settings: The permissions.

    Raises:
        StatusError: The version contains Python code that may not run.
    """
    is_model = is_python_model(version)
    given = settings.hooks_of(name)
    hooks = None if given is None else Path(given)
    if hooks is None and (version / HOOKS_FILE).is_file():
        hooks = version / HOOKS_FILE
    found = [PYTHON_MODEL_FILE] if is_model else []
    if hooks is not None and given is None:
        found.append(str(HOOKS_FILE))
    if found and not settings.allows(name):
        raise StatusError(
            Code.PERMISSION_DENIED,
            f"{version} contains {' and '.join(found)}, Python code that would run as the server's "
            f"user: to allow it, start the server with --allow-python {name} "
            f"(timonel-model-server: --allow_python={name})",
        )
    return PythonCode(is_model, hooks)


def python_settings(
    allow: Sequence[str],
    hooks: Iterable[str | os.PathLike[str]],
    models: Iterable[str] | None = None,
) -> PythonSettings:
    """Convert command-line options to settings. Whether the files exist is checked separately.

    Args:
        allow: Names of models; ``*`` for all.
        hooks: Files, each for all models, or for one as in ``digits=hooks.py``.
        models: The names of the served models; None if more may be added later.

    Raises:
        SpecError: A name is not served, or one model has two files.
    """
    files = {}
    for name, given in by_model([os.fspath(each) for each in hooks], "a file with hooks").items():
        if len(given) > 1:
            raise SpecError(
                f"{name} has several files with hooks: {', '.join(given)}",
                hint="give one file per model",
            )
        files[name] = str(Path(given[0]).absolute())
    if models is not None:
        known = {*models, EVERY_MODEL}
        for name in (*allow, *files):
            if name not in known:
                served = ", ".join(sorted(known - {EVERY_MODEL}))
                raise SpecError(
                    f"no model {name!r} in this server",
                    hint=f"the models are: {served}; or * for all",
                )
    return PythonSettings(allow=tuple(allow), hooks=files)


def check_files(settings: PythonSettings) -> None:
    """Check that the files with hooks exist.

    Raises:
        NotFoundError: A file does not exist.
    """
    for file in settings.hooks.values():
        if not Path(file).is_file():
            raise NotFoundError(f"there is no file with hooks at {file}", hint="check the path")
