"""Convert command-line options for models' Python code to settings.

Whether the files exist is checked separately.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from timonel.errors import NotFoundError, SpecError
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.runtime import PythonSettings, by_model

Reference = str | os.PathLike[str]


def python_settings(
    allow: Sequence[str], hooks: Iterable[Reference], models: Iterable[str] | None = None
) -> PythonSettings:
    """Return the settings for Python code.

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
            raise SpecError(f"expected one file with hooks for {name}, got {', '.join(given)}")
        files[name] = str(Path(given[0]).absolute())
    if models is not None:
        known = {*models, EVERY_MODEL}
        for name in (*allow, *files):
            if name not in known:
                served = ", ".join(sorted(known - {EVERY_MODEL}))
                raise SpecError(
                    f"expected a model that is served, got {name}", hint=f"it is {served}, or *"
                )
    return PythonSettings(allow=tuple(allow), hooks=files)


def check_files(settings: PythonSettings) -> None:
    """Check that the files with hooks exist.

    Raises:
        NotFoundError: A file does not exist.
    """
    for file in settings.hooks.values():
        if not Path(file).is_file():
            raise NotFoundError(
                f"expected a file with hooks, found none at {file}", hint="check the path"
            )
