"""Python code of a version, and the permission to run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from timonel.models.python import MODEL_FILE, is_python_model
from timonel.serving.settings.runtime import PythonSettings
from timonel.serving.status import Code, StatusError

HOOKS_FILE = Path("assets.extra", "hooks.py")


@dataclass(frozen=True)
class OwnCode:
    """Python code of a version.

    Args:
        is_model: Whether the model itself is a Python class.
        hooks: The file with its hooks; None if it has none.
    """

    is_model: bool
    hooks: Path | None

    def __bool__(self) -> bool:
        return self.is_model or self.hooks is not None


def own_code(version: Path, name: str, settings: PythonSettings) -> OwnCode:
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
    brought = [MODEL_FILE] if is_model else []
    if hooks is not None and given is None:
        brought.append(str(HOOKS_FILE))
    if brought and not settings.allows(name):
        raise StatusError(
            Code.PERMISSION_DENIED,
            f"{version} brings {' and '.join(brought)}, which is Python that would run as this "
            f"server's user: to allow it, start the server with --allow-python {name} "
            f"(timonel-model-server: --allow_python={name})",
        )
    return OwnCode(is_model, hooks)
