"""Runs of a workspace as handles, as `timonel.train` returns them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from timonel.arguments import checked
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs as list_records
from timonel.tracking import read_run as read_record
from timonel.tracking.queries import Condition, sort_runs
from timonel.training.handles import Run
from timonel.training.outcomes import with_outcomes


@checked()
def list_runs(
    kind: str | None = None,
    *,
    where: Sequence[str] = (),
    sort: str | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
) -> list[Run]:
    """Return the runs of a workspace, newest first.

    Unreadable records are logged and skipped: one broken folder must not hide the rest.

    Args:
        kind: Kind of work, such as ``train``; all by default.
        where: Conditions that the runs meet, such as ``params.lr < 0.01``.
        sort: Value to sort by, such as ``val_loss``; largest first with ``-``.
        workspace: A workspace or its location; see `timonel.storage.find_workspace`.

    Raises:
        NotFoundError: There is no workspace.
        SpecError: A condition cannot be parsed, or no run has the value to sort by.
    """
    conditions = [Condition.parse(each) for each in where]
    place = _existing(workspace)
    records = with_outcomes(place, list_records(place, kind))
    found = [each for each in records if all(condition.holds(each) for condition in conditions)]
    return [Run(each.id, place) for each in (found if sort is None else sort_runs(found, sort))]


@checked()
def read_run(
    ref: str = "last",
    *,
    kind: str | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
) -> Run:
    """Return a run.

    Args:
        ref: Its ID, a name (the newest run with that name), a unique prefix of an ID, or ``last``.
        kind: Consider only runs of this kind.
        workspace: A workspace or its location.

    Raises:
        NotFoundError: There is no workspace, or no run matches.
        SpecError: Several IDs have this prefix.
        FormatError: A newer release wrote the record.
        CorruptError: The record cannot be read.
    """
    place = _existing(workspace)
    return Run(read_record(place, ref, kind).id, place)


def _existing(workspace: Workspace | str | os.PathLike[str] | None) -> Workspace:
    if isinstance(workspace, Workspace):
        return workspace
    return find_workspace(workspace, create=False)
