"""Tracebacks as tests compare them."""

from __future__ import annotations


def without_carets(text: str) -> str:
    """Return a traceback without lines of carets, which depend on the version of Python."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip(" ~^\n"))
