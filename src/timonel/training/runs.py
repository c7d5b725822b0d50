"""Runs of a workspace as handles, as `timonel.train` returns them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from timonel.arguments import checked
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs as list_records
from timonel.tracking import read_run as read_record
from timonel.tracking.queries import Query
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
    query = Query.parse(where, sort)
    place = find_workspace(workspace, create=False)
    records = with_outcomes(place, list_records(place, kind))
    return [Run(each.id, place) for each in query.select(records)]


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
    place = find_workspace(workspace, create=False)
    return Run(read_record(place, ref, kind).id, place)
