"""Tests of names across packages."""

import ast
from collections import defaultdict
from pathlib import Path

import timonel

_ROOT = Path(timonel.__file__).parent


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in _ROOT.rglob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(_ROOT)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
