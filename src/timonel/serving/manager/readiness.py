"""Describe configured versions that are missing in a model's folder. Pure."""

from __future__ import annotations

from collections.abc import Collection

from timonel.serving.settings import ModelSettings, Specific


def what_is_missing(model: ModelSettings, numbers: Collection[int]) -> str | None:
    """Return a message about missing versions; None if complete."""
    if isinstance(model.policy, Specific):
        if not model.policy.versions:
            return "its policy asks for no version"
        if absent := sorted(set(model.policy.versions).difference(numbers)):
            return f"found no version {', '.join(map(str, absent))} in {model.base_path}"
    return None if numbers else f"found no version in {model.base_path}"
