"""YAML that people write: a key that is repeated is an error, not the last value."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped] # no stubs


class _UniqueKeys:
    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)  # type: ignore[misc] # of PyYAML's loaders
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen and key.value != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} is repeated", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


class PlainLoader(_UniqueKeys, yaml.SafeLoader):  # type: ignore[misc] # no stubs
    """Loader of plain values."""


class TextLoader(_UniqueKeys, yaml.BaseLoader):  # type: ignore[misc] # no stubs
    """Loader that leaves all scalars texts."""


def yaml_problem(error: Exception) -> str:
    """Return place and problem of an error, as ``(line 3, column 1): the key 'a' is repeated``."""
    mark = getattr(error, "problem_mark", None)
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{place}: {getattr(error, 'problem', None) or 'it cannot be read'}"
