"""Start a job's supervisor detached from the submitting process."""

from __future__ import annotations

import subprocess
import sys

from timonel.engines.local.environment import inherited
from timonel.engines.local.folder import JobFolder
from timonel.errors import EngineError

_LAUNCH_TIMEOUT_S = 60.0


def launch(folder: JobFolder) -> None:
    """Start a job's supervisor, detached from this process and its terminal.

    Raises:
        EngineError: It could not start; the message has its last line of output.
    """
    # -P: a file in the current folder must not shadow a standard module.
    command = [sys.executable, "-P", "-m", "timonel.engines.local.daemon", str(folder.root)]
    try:
        with folder.supervisor_log.open("ab") as log:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=inherited(),
                start_new_session=True,
                check=False,
                timeout=_LAUNCH_TIMEOUT_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"expected the job's supervisor to start, got {error}") from error
    if done.returncode != 0:
        words = folder.supervisor_log.read_text(errors="replace").strip().splitlines()
        raise EngineError(
            f"expected the job's supervisor to start, got {words[-1] if words else 'no answer'}"
        )
