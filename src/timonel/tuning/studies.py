"""Create, open and list the studies of a workspace."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.trial import FrozenTrial

from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError, SpecError, TimonelError
from timonel.storage import Workspace, exclusive, read_document
from timonel.tuning.settings import StudySettings
from timonel.tuning.storage import JOURNAL, storage_errors
from timonel.tuning.study import KIND, Study
from timonel.tuning.transfer import SETTINGS, names, pull_settings

_logger = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


def create_study(
    workspace: Workspace,
    settings: StudySettings,
    priors: Sequence[FrozenTrial] = (),
    points: Sequence[Mapping[str, Any]] = (),
) -> Study:
    """Create a study.

    Args:
        settings: The study's settings.
        priors: Trials of earlier studies that its algorithm learns from.
        points: Optuna's parameters of its first trials.
    """
    if not _NAME.match(settings.name):
        raise SpecError(
            f"the study's name is invalid: {settings.name!r}",
            hint="use letters, digits, '_', '-' and '.', and start with a letter or digit",
        )
    if settings.name == "last":
        raise SpecError("'last' means the newest study", hint="use another --study")
    study = Study(workspace, settings)
    with exclusive(workspace.studies / f".{settings.name}.lock"):
        if _exists(workspace, settings.name):
            raise _is_there(workspace, settings)
        study.folder.mkdir(parents=True, exist_ok=True)
        (study.folder / JOURNAL).unlink(missing_ok=True)
        try:
            with storage_errors(study.name):
                found = optuna.create_study(
                    study_name=study.name,
                    storage=study.storage,
                    directions=[objective.goal for objective in settings.objectives],
                )
                found.add_trials(priors)
                for point in points:
                    found.enqueue_trial(dict(point))
        except DuplicatedStudyError:
            raise AlreadyExistsError(
                f"the storage has a study {study.name}, which another workspace may own",
                hint="use another --study",
            ) from None
        # Written last: a folder without it is no study yet.
        try:
            study.create()
        except AlreadyExistsError:  # another machine was faster
            raise _is_there(workspace, settings) from None
    return study


def _is_there(workspace: Workspace, settings: StudySettings) -> AlreadyExistsError:
    space = open_study(workspace, settings.name).settings.search_space
    other = "" if space == settings.search_space else " with another search space"
    return AlreadyExistsError(
        f"the study {settings.name} exists{other}",
        hint=f"continue it with 'timonel studies resume {settings.name}', or use another --study",
    )


def open_study(workspace: Workspace, name: str) -> Study:
    """Return a study by name, or the newest one for ``last``.

    Raises:
        NotFoundError: No such study exists.
        CorruptError: Its settings cannot be read.
    """
    if name == "last":
        found = list_studies(workspace)
        if not found:
            raise NotFoundError("no studies yet", hint="'timonel tune' starts one")
        return found[0]
    if not _NAME.match(name) or not _exists(workspace, name):
        raise NotFoundError(
            f"no study {name!r} in this workspace", hint="'timonel studies' lists the studies"
        )
    return _read(workspace, name)


def _exists(workspace: Workspace, name: str) -> bool:
    """Return whether a study exists, and bring its settings up to date."""
    copy = workspace.local_copy
    if copy is None:
        return (workspace.studies / name / SETTINGS).is_file()
    try:
        pull_settings(copy.store, workspace.studies, name)
    except NotFoundError:
        return False
    return True


def _read(workspace: Workspace, name: str) -> Study:
    file = workspace.studies / name / SETTINGS
    body = read_document(file, KIND)
    try:
        settings = StudySettings.model_validate(body)
    except ValueError as error:
        raise CorruptError(f"{file} holds no valid settings: {error}") from error
    return Study(workspace, settings)


def list_studies(workspace: Workspace) -> list[Study]:
    """Return the studies of a workspace, newest first.

    Unreadable settings are logged and skipped: one broken file must not hide the other studies.
    """
    copy = workspace.local_copy
    known = (
        [file.parent.name for file in workspace.studies.glob(f"[!.]*/{SETTINGS}")]
        if copy is None
        else [name for name in names(copy.store) if _exists(workspace, name)]
    )
    found = []
    for name in known:
        try:
            found.append(_read(workspace, name))
        except TimonelError as error:
            _logger.warning("skipped a study: %s", error)
    return sorted(found, key=lambda study: study.settings.created_at, reverse=True)
