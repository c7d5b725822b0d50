"""What a model's folder lacks of the versions that its settings ask for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from timonel.serving.settings import ModelSettings, Specific


def what_is_missing(model: ModelSettings, numbers: Collection[int]) -> str | None:
    """Return what to complain about in a folder that can be read, and has these versions."""
    if isinstance(model.policy, Specific):
        if not model.policy.versions:
            return "its policy asks for no version"
        if absent := sorted(set(model.policy.versions).difference(numbers)):
            return f"found no version {', '.join(map(str, absent))} in {model.base_path}"
    return None if numbers else f"found no version in {model.base_path}"
