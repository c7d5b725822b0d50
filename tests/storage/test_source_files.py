from __future__ import annotations

from pathlib import Path

import timonel
from timonel.storage.source_files import own_files


def test_own_files_are_those_that_are_imported() -> None:
    found = own_files()
    assert found["timonel/__init__.py"] == Path(timonel.__file__)
    assert {"timonel/py.typed", "timonel/storage/source_files.py"} <= found.keys()
    assert not [name for name in found if name.endswith(".pyc")]
