"""``python -m tests.contracts.service_replica <mode>...``: a replica for tests of service engines.

It serves HTTP at ``$HOST:$PORT`` until SIGTERM, then answers the requests in flight and exits.
Modes, which may be combined:

    print:<text>   print a line first
    exit:<n>       exit at once
    hang           never listen
    ignore-term    print a line at each SIGTERM instead of exiting
    stray          leave a process behind in its own session, without a living parent

Paths:

    /          200, with name, pid, arguments and environment as JSON
    /ready     200, or 503 after /unready
    /alive     200
    /unready   make /ready answer with 503
    /freeze    answer, then answer no more requests
    /drain     answer after SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TERM = threading.Event()
_UNREADY = threading.Event()
_FROZEN = threading.Event()
_DRAIN_S = 0.2


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if _FROZEN.is_set():
            time.sleep(3600)
        {"/unready": _UNREADY, "/freeze": _FROZEN}.get(self.path, threading.Event()).set()
        if self.path == "/drain":
            _TERM.wait()
            time.sleep(_DRAIN_S)
        is_failing = self.path == "/ready" and _UNREADY.is_set()
        body = json.dumps({"pid": os.getpid(), "args": sys.argv[1:], "env": dict(os.environ)})
        self.send_response(503 if is_failing else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for the requests in flight


def _leave_process() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.wait()


def main(modes: list[str]) -> None:
    """Run the modes, then serve."""
    for mode in modes:
        name, _, value = mode.partition(":")
        if name == "print":
            print(value, flush=True)
        elif name == "exit":
            sys.exit(int(value))
        elif name == "stray":
            _leave_process()
    if "hang" in modes:
        time.sleep(3600)
    server = _Server((os.environ["HOST"], int(os.environ["PORT"])), _Handler)

    def stop(*_: object) -> None:
        _TERM.set()
        threading.Thread(target=server.shutdown).start()

    def ignore(*_: object) -> None:
        os.write(1, b"ignored SIGTERM\n")

    signal.signal(signal.SIGTERM, ignore if "ignore-term" in modes else stop)
    server.serve_forever(poll_interval=0.05)
    server.server_close()


if __name__ == "__main__":
    main(sys.argv[1:])
