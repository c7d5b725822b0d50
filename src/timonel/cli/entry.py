"""Entry point of the ``timonel`` command.

Handles Ctrl-C from the start, even while the command line is being imported.
"""

from __future__ import annotations

import sys

from timonel.errors import Interrupted


def main() -> None:
    """Run the command line and exit."""
    try:
        from timonel.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(Interrupted.exit_code)
    run()
