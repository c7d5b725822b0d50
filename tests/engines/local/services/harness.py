"""The harness of the contract suite for the local engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.contracts.services import ServiceHarness
from timonel.engines.local.services import LocalServiceEngine
from timonel.engines.local.services.folder import ServiceFolder


class LocalHarness(ServiceHarness):
    def __init__(self, services: Path) -> None:
        super().__init__(LocalServiceEngine(services))
        self.services = services

    def folder(self, service: str = "web") -> ServiceFolder:
        return ServiceFolder(self.services / service)

    def pid(self, replica: str, service: str = "web") -> int:
        folder = self.folder(service)
        record = folder.read_record()
        process = folder.process_of(next(r for r in record.replicas if r.name == replica))
        assert process is not None
        return process.pid

    def kill_replica(self, service: str, replica: str) -> None:
        os.kill(self.pid(replica, service), signal.SIGKILL)

    def leftovers(self) -> list[str]:
        return [text for _, text in self.processes()]

    def processes(self) -> list[tuple[int, str]]:
        """Processes whose command line or environment names the folder of services."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                shown = command + (folder / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.services) in shown and int(folder.name) != os.getpid():
                found.append((int(folder.name), command.replace(b"\0", b" ").decode()))
        return found
