"""From what a person says of models' Python to settings; whether files are there is apart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from timonel.errors import NotFoundError, SpecError
from timonel.serving.settings.per_model import by_model
from timonel.serving.settings.python import EVERY_MODEL, PythonSettings

Reference = str | os.PathLike[str]


def python_settings(
    allow: Sequence[str], hooks: Iterable[Reference], models: Iterable[str] | None = None
) -> PythonSettings:
    """Return which Python may run.

    Args:
        allow: Names of models; ``*`` for all.
        hooks: Files, each for all models, or for one as in ``digits=hooks.py``.
        models: The names of what is served; none if others may come.

    Raises:
        SpecError: A name is none of them, or there are two files for one model.
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
    """Check that hooks are where they are said to be.

    Raises:
        NotFoundError: There is no such file.
    """
    for file in settings.hooks.values():
        if not Path(file).is_file():
            raise NotFoundError(
                f"expected a file with hooks, found none at {file}", hint="check the path"
            )
