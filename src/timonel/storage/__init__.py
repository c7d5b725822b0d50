"""Locations, atomic writes, digests, versioned documents and the workspace."""

from timonel.storage.atomic import append_line, publish_dir, write_bytes, write_json, write_text
from timonel.storage.digests import (
    digest_bytes,
    digest_file,
    digest_tree,
    quick_digest,
    verify_file,
)
from timonel.storage.documents import (
    FORMATS,
    document,
    read_document,
    write_document,
)
from timonel.storage.locks import exclusive, is_held
from timonel.storage.uris import is_local, join, local_path, normalise
from timonel.storage.workspace import Workspace, find_workspace

__all__ = [
    "FORMATS",
    "Workspace",
    "append_line",
    "digest_bytes",
    "digest_file",
    "digest_tree",
    "document",
    "exclusive",
    "find_workspace",
    "is_held",
    "is_local",
    "join",
    "local_path",
    "normalise",
    "publish_dir",
    "quick_digest",
    "read_document",
    "verify_file",
    "write_bytes",
    "write_document",
    "write_json",
    "write_text",
]
