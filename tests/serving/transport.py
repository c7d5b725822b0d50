"""A connection without a socket."""

from __future__ import annotations

import asyncio


class Transport(asyncio.Transport):
    """Takes what is written, until it is closed."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.closed = False
        self.is_read = True

    def write(self, data):
        assert not self.closed, "written to a closed connection"
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True
