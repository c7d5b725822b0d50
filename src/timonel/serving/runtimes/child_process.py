"""Child process with a version: ``python -m timonel.serving.runtimes.child_process DESCRIPTOR``.

It loads the version of its orders, and answers calls until the connection for orders ends: over one
connection for each concurrent call, of which it sends the parent's ends.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timonel.processes.tree import die_with_parent, name_process
from timonel.serving.memory import give_back, limit_heap
from timonel.serving.process_io import configure_logging
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel, Runtime
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import DTYPE_NAMES, Array, Signature
from timonel.serving.status import Code, StatusError, as_status

_LOG = logging.getLogger(__name__)
_EXIT_FAILED = 70
MAX_SLOTS = 128
"""Largest number of concurrent calls: a message carries at most 253 descriptors."""


@dataclass(frozen=True)
class Orders:
    """What a child process loads.

    Args:
        runtime: The runtime's factory, as ``module:attribute``.
        threads: Concurrent calls, if the version declares none.
    """

    runtime: str
    name: str
    folder: str
    settings: RuntimeSettings
    threads: int


@dataclass(frozen=True)
class Loaded:
    """What a child process has loaded, see `DeclaringModel`."""

    signatures: Mapping[str, Signature]
    platform: str
    batchable: bool
    slots: int


def send(connection: Connection, value: Any) -> None:
    """Send a value, with its arrays out of band."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((content, [view.nbytes for view in views])))
    for view in views:
        connection.send_bytes(view)


def receive(connection: Connection) -> Any:
    """Receive a value; its arrays are writable."""
    content, sizes = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our own process
    buffers = []
    for size in sizes:
        buffer = bytearray(size)
        connection.recv_bytes_into(buffer)
        buffers.append(buffer)
    return pickle.loads(content, buffers=buffers)  # noqa: S301 - of our own process


def receive_loaded(control: Connection) -> tuple[Loaded | StatusError, list[Connection]]:
    """Wait until the process has loaded; return the connections for calls."""
    answer = receive(control)
    if isinstance(answer, StatusError):
        return answer, []
    loaded = Loaded(*answer)
    with socket.socket(fileno=os.dup(control.fileno())) as sock:
        _, descriptors, _, _ = socket.recv_fds(sock, 1, loaded.slots)
    return loaded, [Connection(descriptor) for descriptor in descriptors]


def main(descriptor: int) -> None:
    """Load the version and answer calls; ends the process."""
    parent = os.getppid()
    die_with_parent(parent)
    faulthandler.enable()
    configure_logging()
    limit_heap()
    control = Connection(descriptor)
    orders: Orders = receive(control)
    name_process(f"timonel {orders.name}")
    try:
        model = _load(orders)
    except Exception as error:  # noqa: BLE001 - becomes the load's status
        send(control, as_status(error, "the load", Code.UNKNOWN))
        return
    give_back()
    batchable, slots = False, orders.threads
    if isinstance(model, DeclaringModel):
        batchable, slots = model.batchable, model.slots
    slots = min(slots, MAX_SLOTS)
    # Not as `Loaded`, whose module is __main__ here.
    send(control, (dict(model.signatures), model.platform, batchable, slots))
    pairs = [socket.socketpair() for _ in range(slots)]
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        socket.send_fds(sock, [b"\n"], [theirs.fileno() for _, theirs in pairs])
    for own, theirs in pairs:
        theirs.close()
        connection = Connection(own.detach())
        threading.Thread(target=_answer, args=(model, connection), daemon=True).start()
    try:
        receive(control)
    except (EOFError, OSError):
        model.close()


def _load(orders: Orders) -> LoadedModel:
    module, _, attribute = orders.runtime.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module), attribute)()
    return runtime.load(Path(orders.folder), orders.settings)


def _answer(model: LoadedModel, connection: Connection) -> None:
    try:
        while True:
            send(connection, _answer_to(model, *receive(connection)))
    except (EOFError, OSError):
        return  # the parent has closed it
    except BaseException:  # noqa: BLE001 - such as a lack of memory: whoever waits must learn of it
        _LOG.exception("the process ends, as a call cannot be answered")
        os._exit(_EXIT_FAILED)


def _answer_to(
    model: LoadedModel, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None
) -> dict[str, Array] | StatusError:
    try:
        found = model.run(signature, inputs, outputs)
        _check_types(found)
    except BaseException as error:  # noqa: BLE001 - becomes the answer, whatever libraries raise
        return as_status(error, "a call")
    return found


def _check_types(outputs: Mapping[str, Array]) -> None:
    for name, each in outputs.items():
        if each.dtype not in DTYPE_NAMES:
            raise TypeError(f"expected {name} to have a tensor's type, got {each.dtype}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
    logging.shutdown()
    # The threads of calls and the destructors of libraries are not waited for.
    os._exit(0)
