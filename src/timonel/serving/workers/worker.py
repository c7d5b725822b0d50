"""``python -m timonel.serving.workers.worker <descriptor>``: one of several fronts of a server.

It has the skins of a server and nothing else. Its leader loads, and tells it what there is; the
requests go straight to the compute processes. It ends when its leader says so, or is gone.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop

from timonel.engines.local.processes import name_process
from timonel.errors import TimonelError
from timonel.serving.access.front import Access
from timonel.serving.access.shared import SharedMemory
from timonel.serving.config import ServerSettings
from timonel.serving.core import DataPlane
from timonel.serving.descriptors import raise_limit
from timonel.serving.instruments import Instruments
from timonel.serving.listening import Listening
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.sums import as_fields
from timonel.serving.servables import Catalogue
from timonel.serving.status import StatusError
from timonel.serving.workers.channel import Channel
from timonel.serving.workers.follower import Follower
from timonel.serving.workers.joined import JoinedModel
from timonel.serving.workers.news import read_news
from timonel.serving.workers.relay import Relay
from timonel.serving.workers.traffic import GroupTraffic, recent_fields

_LOG = logging.getLogger(__name__)
# A terminal's Ctrl-C and a service manager's SIGTERM go to every process of a server: the leader
# says when it is time.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TELL_S = 2.0
_PAGE_S = 30.0


def main(descriptor: int) -> int:
    """Serve until told to end."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    name_process("timonel front")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    worker = _Worker(connection)
    try:
        worker.run()
    except TimonelError as error:
        worker.fail(error)
        return error.exit_code
    except StatusError as error:
        _LOG.error("the leader is gone: %s", error.message)
        return 1
    return 0


class _Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._stop = threading.Event()
        self._wake: Any = None
        self._lock = threading.Lock()
        self._follower: Follower | None = None
        self._monitor: Monitor | None = None
        self._looked: Callable[[], None] = lambda: None
        self._channel = Channel(connection, self._handle, self._end, "leader")
        self._traffic = GroupTraffic(self._channel)
        self._channel.start()

    def run(self) -> None:
        orders = self._channel.ask("orders").result()
        settings = _own(ServerSettings.model_validate(orders["settings"]), orders["private"])
        raise_limit()
        memory = SharedMemory(orders["memory"], orders["index"])
        access = Access(settings.access, memory)
        catalogue = Catalogue()
        follower = Follower(
            settings,
            catalogue,
            lambda key, name: JoinedModel(self._channel, key, name, settings),
            self._channel,
        )
        instruments = Instruments(settings, catalogue, lambda: follower.models)
        self._monitor = instruments.monitor
        self._follower = follower
        if self._stop.is_set():
            return
        follower.start()
        if orders["grpc_port"] is not None or settings.grpc.socket_path is not None:
            importlib.import_module("timonel.serving.v2.service")
        gc.collect()
        gc.freeze()
        self._channel.tell("follow")
        follower.first.wait()
        listening = Listening(
            settings,
            DataPlane(catalogue, follower, instruments.recorder),
            None if orders["rest"] is None else socket.socket(fileno=orders["rest"]),
            orders["grpc_port"],
            access,
            instruments,
            pages=self,
            source=self._traffic,
            shares_ports=True,
        )
        relay = None
        if orders["unix"] is not None:
            relay = Relay(socket.socket(fileno=orders["unix"]), orders["private"])
        threading.Thread(target=self._tell_counts, name="counts", daemon=True).start()
        with (
            instruments.running(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(self._serve(listening, relay))
        follower.stop()
        self._count()

    def page(self) -> bytes:
        """Return the metrics of all workers."""
        page: str = self._channel.ask("page").result(_PAGE_S)
        return page.encode()

    def fail(self, error: TimonelError) -> None:
        """Tell the leader that there is no use in another try."""
        self._channel.ask("failed", error.message, error.hint)

    async def _serve(self, listening: Listening, relay: Relay | None) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._wake = lambda: loop.call_soon_threadsafe(stop.set)
            self._looked = partial(_call_in, loop, self._traffic.told)
            if self._stop.is_set():
                return
        async with listening.opened():
            if relay is not None:
                await relay.start()
            self._channel.tell("ready")
            await stop.wait()
            if relay is not None:
                relay.refuse()
        with self._lock:
            self._wake = None
            self._looked = lambda: None

    def _handle(self, name: str, values: list[Any]) -> Any:
        if name == "news" and self._follower is not None:
            self._follower.take(read_news(values[0]))
        elif name == "count":
            self._count()
            since = values[1]
            if since is not None and self._monitor is not None:
                return recent_fields(self._monitor.recent(), since)
        elif name == "look":
            with self._lock:
                self._looked()
        elif name == "drain":
            self._end()
        return None

    def _end(self) -> None:
        with self._lock:
            self._stop.set()
            if self._wake is not None:
                self._wake()
        if self._follower is not None:
            self._follower.first.set()

    def _count(self) -> None:
        if self._monitor is not None:
            self._channel.tell("counts", as_fields(self._monitor.counted()))

    def _tell_counts(self) -> None:
        while not self._stop.wait(_TELL_S):
            self._count()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(function)


def _own(settings: ServerSettings, socket_path: str | None) -> ServerSettings:
    """Return a server's settings as one of its workers has them."""
    limits = settings.access.limits
    most = limits.max_connections
    if most is not None:
        limits = limits.model_copy(update={"max_connections": math.ceil(most / settings.workers)})
    access = settings.access.model_copy(update={"limits": limits})
    grpc = settings.grpc.model_copy(update={"socket_path": socket_path})
    return settings.model_copy(update={"access": access, "grpc": grpc})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
