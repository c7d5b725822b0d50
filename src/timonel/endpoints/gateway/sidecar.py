"""``python -m timonel.endpoints.gateway.sidecar FOLDER HOST PORT``: Envoy beside a control plane.

It waits for the configuration that the control plane writes into the folder, then becomes Envoy.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from timonel.endpoints.gateway.process import envoy_command

CONFIG, SOCKETS = "config", "sockets"
READY_PORT = 15090
_POLL_S = 0.1
_NAMES = ("bootstrap", "clusters", "listeners")


def main(folder: Path, host: str, port: str) -> None:
    """Run Envoy in place of this process."""
    files = [folder / CONFIG / name / "current.json" for name in _NAMES]
    while not all(file.exists() for file in files):
        time.sleep(_POLL_S)
    command = envoy_command(files[0], folder / SOCKETS, host, port)
    os.execv(command[0], command)  # noqa: S606 - no shell


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
