"""Where the command ``timonel`` starts.

Ctrl-C is one line from the first moment, also while the command line itself is being imported.
"""

from __future__ import annotations

import sys

from timonel.errors import Interrupted


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        from timonel.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(Interrupted.exit_code)
    run()
