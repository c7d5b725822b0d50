"""Record parameters that a script parses from its command line, defaults included."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from timonel.tracking.redaction import redact_params


@contextlib.contextmanager
def recorded(
    record: Callable[[Mapping[str, Any]], None], known: Collection[str] = ()
) -> Iterator[None]:
    """Record how ``argparse`` parses the command line within this block.

    Args:
        record: Takes the parameters by the names of their attributes, without secrets.
        known: Names that are already recorded, spelled like flags.
    """
    original = argparse.ArgumentParser.parse_known_args
    left_out = {name.replace("-", "_") for name in known}

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = original(self, args, namespace)
        # A subparser, or a parser of other arguments, does not parse the script's command line.
        if args is None or list(args) == sys.argv[1:]:
            found = {
                name: value
                for name, value in vars(parsed).items()
                if name not in left_out and value is not None and not callable(value)
            }
            # Redact before lists and mappings become text, which hides the names of secrets.
            record({name: _plain(value) for name, value in redact_params(found).items()})
        return parsed, rest

    patched: Any = argparse.ArgumentParser
    patched.parse_known_args = parse_known_args
    try:
        yield
    finally:
        patched.parse_known_args = original


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
