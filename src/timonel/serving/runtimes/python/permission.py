"""Permission to run the Python code of versions."""

from __future__ import annotations

from pathlib import Path

from timonel.models.inspection import PYTHON_MODEL_FILE, is_python_model
from timonel.serving.settings.runtime import PythonSettings
from timonel.serving.status import Code, StatusError


def check_permission(version: Path, name: str, settings: PythonSettings) -> bool:
    """Return whether a version is a Python model, which then may run.

    Args:
        version: Its folder.
        name: The name of the served model.
        settings: The permissions.

    Raises:
        StatusError: The version contains Python code that may not run.
    """
    if not is_python_model(version):
        return False
    if not settings.allows(name):
        raise StatusError(
            Code.PERMISSION_DENIED,
            f"{version} contains {PYTHON_MODEL_FILE}, Python code that would run as the server's "
            f"user: to allow it, start the server with --allow-python {name} "
            f"(timonel-model-server: --allow_python={name})",
        )
    return True
