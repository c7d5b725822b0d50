"""gRPC clients that send a part of a message, in HTTP/2 written by hand."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_INITIAL_WINDOW = 4
_FRAME = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _head(path: str, metadata: dict[str, str]) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers", **metadata,
    }  # fmt: skip
    parts = (text.encode() for pair in fields.items() for text in pair)
    texts = [bytes([len(each)]) + each for each in parts]
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return b"".join(b"\0" + name + value for name, value in pairs)


class HalfMessage:
    """A call whose message of ``declared`` bytes has come up to ``sent`` of them.

    Attributes:
        accepted: Bytes that the server let the client send so far.
        ended: Set when the server has ended the stream or the connection.
    """

    def __init__(
        self, address: tuple[str, int], path: str, declared: int, sent: int, **metadata: str
    ) -> None:
        self._socket = socket.create_connection(address, 10)
        self._socket.settimeout(None)
        self._left = sent
        self._windows = [65_535, 65_535]  # of the connection, of the stream
        self.accepted = 0
        self.ended = threading.Event()
        head = _head(path, {name.replace("_", "-"): each for name, each in metadata.items()})
        self._socket.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_HEADERS, 4, 1, head)
            + _frame(_DATA, 0, 1, struct.pack(">BI", 0, declared))
        )
        self._windows = [window - 5 for window in self._windows]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            initial = 65_535
            while True:
                while self._left and min(self._windows) > 0:
                    size = min(self._left, _FRAME, *self._windows)
                    self._socket.sendall(_frame(_DATA, 0, 1, bytes(size)))
                    self._windows = [window - size for window in self._windows]
                    self._left -= size
                    self.accepted += size
                head = self._read(9)
                length = int.from_bytes(head[:3], "big")
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
                payload = self._read(length)
                if kind == _WINDOW_UPDATE:
                    self._windows[1 if stream else 0] += int.from_bytes(payload, "big")
                elif kind == _SETTINGS and not flags & 1:
                    for at in range(0, length, 6):
                        name, value = struct.unpack(">HI", payload[at : at + 6])
                        if name == _INITIAL_WINDOW:
                            self._windows[1] += value - initial
                            initial = value
                    self._socket.sendall(_frame(_SETTINGS, 1, 0, b""))
                elif stream == 1 and ((kind == _HEADERS and flags & 1) or kind == 3):
                    self.ended.set()  # trailers, or a reset
        except (OSError, EOFError):
            self.ended.set()

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            chunk = self._socket.recv(size - len(found))
            if not chunk:
                raise EOFError
            found += chunk
        return found

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
