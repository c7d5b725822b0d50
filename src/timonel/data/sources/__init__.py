"""Sources of raw records: plug-ins of the entry-point group ``timonel.sources``."""

from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    SourceOptions,
    UnusableError,
    choose_source,
    installed_sources,
)

__all__ = [
    "Description",
    "Entry",
    "Raw",
    "RawFiles",
    "Scan",
    "Source",
    "SourceOptions",
    "UnusableError",
    "choose_source",
    "installed_sources",
]
