"""Supervisor: keeps the replicas of one service as requested.

A single thread. Starts and stops are published before they are carried out, so that another
supervisor can continue at any point: it adopts running replicas and restarts the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timonel.engines.coordination import rollout
from timonel.engines.coordination.rollout import Replica
from timonel.engines.local.services import replica as processes
from timonel.engines.local.services.folder import HEARTBEAT_S, ServiceFolder, ServiceRecord
from timonel.engines.local.services.replica import ReplicaProcess
from timonel.engines.service_spec import ServiceSpec
from timonel.errors import CorruptError, TimonelError
from timonel.processes.clock import SteadyClock
from timonel.processes.ports import PortReservation
from timonel.processes.spawn import describe_exit
from timonel.processes.tree import kill_all, marked, name_process, own_identity

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_START_PERIOD_S = 0.1
"""Longest time between checks of a replica that is not ready yet."""
_LOOK_S = 5.0
"""Longest time between looks at the request: the folder may have been removed."""
_RETRY_S = 1.0
"""Delay after the state could not be saved."""

logger = logging.getLogger(__name__)


class ServiceSupervisor:
    """Runs one service until it is deleted.

    SIGUSR1 makes it read the request again. SIGTERM, as at a shutdown of the machine, stops all
    replicas and keeps the service.
    """

    def __init__(self, folder: ServiceFolder) -> None:
        self._folder = folder
        self._now = SteadyClock()  # clock changes must not cause timeouts
        self._request = folder.read_request()
        own = own_identity().as_json()
        self._record = _record_of(folder).model_copy(update={"supervisor": own})
        self._published: ServiceRecord | None = None
        self._processes: dict[str, ReplicaProcess] = {}
        self._wake = asyncio.Event()
        self._is_shutting_down = False
        name_process(f"svc {self._request.spec.name}")

    async def run(self, accepted: Callable[[], None]) -> None:
        """Run the service; return when it is deleted, or stopped by a signal.

        Calls ``accepted`` once the supervisor can be signalled.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._read_request)
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._shut_down)
        self._adopt()
        self._folder.beat()
        self._publish()
        heartbeat = loop.create_task(self._beat())
        accepted()
        while True:
            self._wake.clear()
            # Read after the clear: a request that is written later wakes the loop again.
            self._request = self._folder.read_request()
            delay_s = self._reconcile()
            if self._is_ending and not self._record.replicas:
                if self._folder.read_request() == self._request:
                    break
                self._is_shutting_down = False  # for a request that came meanwhile
                continue
            try:
                async with asyncio.timeout(min(delay_s or _LOOK_S, _LOOK_S)):
                    await self._wake.wait()
            except TimeoutError:
                continue
        heartbeat.cancel()
        if self._request.deleting:
            self._folder.remove()

    @property
    def _is_ending(self) -> bool:
        return self._request.deleting or self._is_shutting_down

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # the folder was removed: the loop notices
                self._folder.beat()
            await asyncio.sleep(HEARTBEAT_S)

    def _read_request(self) -> None:
        """Wake the loop for a new request, which also ends a shutdown that has begun."""
        self._is_shutting_down = False
        self._wake.set()

    def _shut_down(self) -> None:
        self._is_shutting_down = True
        self._wake.set()

    def _adopt(self) -> None:
        """Take over the replicas of an earlier supervisor."""
        now = self._now()
        for each in self._record.replicas:
            replica = rollout.adopted(each, self._record.specs[each.template], now)
            self._set(each.name, replica)
            process = processes.adopt(self._folder, replica)
            if process is not None:
                logger.info("adopted %s", replica.name)
                self._watch(process, self._record.specs[replica.template])
                if replica.state == "stopping" and not replica.is_signalled:
                    self._terminate(process)
                continue
            processes.kill_remains(self._folder, replica.name)
            if replica.has_process:
                self._end(replica.name, "ended without a supervisor")

    def _reconcile(self) -> float | None:
        """Bring the replicas closer to the request; return the seconds until the next call."""
        now, before = self._now(), self._record
        stopped = self._change_size(now)
        ports = self._prepare_starts(now)
        try:
            self._publish()
        except TimonelError as error:
            # No process may run that the next supervisor would not know.
            logger.error("%s", error)  # noqa: TRY400 - an error of the disk, not of this program
            self._record = before
            for reservation in ports.values():
                reservation.release()
            self._carry_out_deadlines(now)
            return _RETRY_S
        for name in stopped:
            self._stop(name)
        for name, reservation in ports.items():
            self._start(name, reservation)
        return self._carry_out_deadlines(now)

    def _change_size(self, now: float) -> tuple[str, ...]:
        """Add replicas to the record and mark those in excess; return the names of the latter."""
        spec = self._request.spec
        requested = 0 if self._is_ending else self._request.replicas
        changes = rollout.changes(spec.template, requested, self._record.replicas)
        for name in changes.stop:
            self._set(name, rollout.stopping(self._replica(name), self._spec_of(name), now))
        number = self._record.number
        created = tuple(
            Replica(
                name=f"{spec.name}-{spec.revision}-{number + index}",
                revision=spec.revision,
                template=spec.template,
                since=now,
                due_at=now,
            )
            for index in range(1, changes.create + 1)
        )
        replicas = (*self._record.replicas, *created)
        specs = {**self._record.specs, spec.template: spec}
        used = {replica.template for replica in replicas}
        self._record = self._record.model_copy(
            update={
                "number": number + changes.create,
                "specs": {key: each for key, each in specs.items() if key in used},
                "replicas": replicas,
            }
        )
        return changes.stop

    def _prepare_starts(self, now: float) -> dict[str, PortReservation]:
        """Mark the replicas that are due to start; return their ports by name."""
        reserved = {}
        for replica in self._record.replicas:
            if replica.state != "restarting" or not _is_due(replica, now):
                continue
            spec = self._record.specs[replica.template]
            try:
                ports = PortReservation(len(spec.ports) if spec.sockets is None else 0)
            except OSError as error:
                self._end(replica.name, f"cannot reserve ports: {error}")
                continue
            reserved[replica.name] = ports
            addresses = processes.sockets(replica.name, spec) or dict(
                zip(spec.ports, ports.addresses, strict=True)
            )
            self._set(replica.name, rollout.launched(replica, addresses, spec, now))
        return reserved

    def _start(self, name: str, ports: PortReservation) -> None:
        spec = self._spec_of(name)
        try:
            process = processes.start(self._folder, self._replica(name), spec, ports)
        except OSError as error:
            ports.release()
            self._end(name, f"cannot start: {error}")
            self._wake.set()
            return
        logger.info("started %s as process %d", name, process.identity.pid)
        self._watch(process, spec)

    def _stop(self, name: str) -> None:
        logger.info("stopping %s", name)
        process = self._processes.get(name)
        if process is None:
            self._folder.remove_replica(name)
        elif delay_s := self._spec_of(name).stop_delay_s:
            # Another supervisor that adopts it meanwhile does not wait.
            asyncio.get_running_loop().call_later(delay_s, self._terminate, process)
        else:
            self._terminate(process)

    def _terminate(self, process: ReplicaProcess) -> None:
        """Send SIGTERM, and have that published: a server may drop its requests at a second one."""
        if self._processes.get(process.name) is not process:
            return  # it has ended meanwhile
        process.signal(signal.SIGTERM)
        signalled = self._replica(process.name).model_copy(update={"is_signalled": True})
        self._set(process.name, signalled)
        self._wake.set()

    def _carry_out_deadlines(self, now: float) -> float | None:
        """Kill overdue replicas; return the seconds until the next deadline."""
        for replica in self._record.replicas:
            if replica.has_process and _is_due(replica, now):
                spec = self._record.specs[replica.template]
                self._kill(replica.name, f"was not ready within {spec.start_timeout_s:g} s")
        due = [r.due_at for r in self._record.replicas if r.due_at is not None and r.due_at > now]
        return min(due) - now if due else None

    def _kill(self, name: str, reason: str) -> None:
        logger.warning("killing %s", name)
        process = self._processes[name]
        process.reason = process.reason or reason
        process.signal(signal.SIGKILL)

    def _watch(self, process: ReplicaProcess, spec: ServiceSpec) -> None:
        self._processes[process.name] = process
        loop = asyncio.get_running_loop()
        loop.add_reader(process.descriptor, partial(self._on_end, process))
        process.checks = loop.create_task(self._check(process, spec))

    def _on_end(self, process: ReplicaProcess) -> None:
        """Handle the end of a replica's process."""
        asyncio.get_running_loop().remove_reader(process.descriptor)
        del self._processes[process.name]
        code = process.exit_code()
        process.close()
        processes.kill_remains(self._folder, process.name)
        how = "ended" if code is None else describe_exit(code)
        # A process that was killed could not say why.
        is_killed = code == -signal.SIGKILL
        line = None if is_killed else processes.last_line(self._folder, process.name)
        reason = process.reason or (how if line is None else f"{how}: {line}")
        logger.info("%s %s", process.name, reason)
        self._end(process.name, reason)
        self._wake.set()

    async def _check(self, process: ReplicaProcess, spec: ServiceSpec) -> None:
        """Check a replica's health until it ends."""
        check = spec.check
        address = self._replica(process.name).addresses[spec.checked_port]
        while True:
            ready = await processes.answers(address, check.ready_path, check.timeout_s)
            process.failures = 0 if ready else process.failures + 1
            before = self._replica(process.name)
            replica = rollout.checked(before, process.failures, self._now())
            if replica != before:
                self._set(process.name, replica)
                logger.info("%s is %s", replica.name, replica.state)
                self._wake.set()
            is_up = replica.state in ("ready", "unready")
            if is_up and check.alive_path is not None:
                await self._check_alive(process, spec, address, check.alive_path)
            await asyncio.sleep(check.period_s if is_up else min(_START_PERIOD_S, check.period_s))

    async def _check_alive(
        self, process: ReplicaProcess, spec: ServiceSpec, address: str, path: str
    ) -> None:
        check = spec.check
        if await processes.answers(address, path, check.timeout_s):
            process.silent_s, process.checked_at = 0.0, self._now()
            return
        process.add_silence(self._now(), check.period_s + check.timeout_s)
        if process.silent_s >= spec.hang_timeout_s:
            self._kill(process.name, f"hung: no answer at {path} for {process.silent_s:.1f} s")

    def _end(self, name: str, reason: str) -> None:
        """Record the end of a replica's process; remove the replica if it was to stop."""
        spec = self._spec_of(name)
        replica = rollout.ended(self._replica(name), spec, reason, self._now())
        self._set(name, replica)
        if replica is None:
            self._folder.remove_replica(name)
        if spec.sockets is not None:
            shutil.rmtree(Path(spec.sockets) / name, ignore_errors=True)

    def _replica(self, name: str) -> Replica:
        return next(replica for replica in self._record.replicas if replica.name == name)

    def _spec_of(self, name: str) -> ServiceSpec:
        return self._record.specs[self._replica(name).template]

    def _set(self, name: str, replica: Replica | None) -> None:
        """Replace a replica in the record; None removes it."""
        kept = (replica if each.name == name else each for each in self._record.replicas)
        replicas = tuple(each for each in kept if each is not None)
        self._record = self._record.model_copy(update={"replicas": replicas})

    def _publish(self) -> None:
        if self._record != self._published:
            self._folder.write_record(self._record)
            self._published = self._record


def _record_of(folder: ServiceFolder) -> ServiceRecord:
    """Return the record of an earlier supervisor; without a readable one, kill its replicas."""
    try:
        return folder.read_record()
    except CorruptError as error:
        logger.error("%s: its replicas are started anew", error)  # noqa: TRY400 - of the file
        kill_all(lambda: marked(folder.token))
        return ServiceRecord()


def _is_due(replica: Replica, now: float) -> bool:
    return replica.due_at is not None and replica.due_at <= now
