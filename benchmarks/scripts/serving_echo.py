"""Servers that read a request and answer bytes that are ready: what the protocols alone cost.

REST is uvicorn with httptools and uvloop, gRPC is grpc.aio, as in timonel's server.

usage: serving_echo.py REST_PORT GRPC_PORT REST_ANSWER GRPC_ANSWER
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import uvicorn
import uvloop


async def main(rest_port: str, grpc_port: str, rest_answer: bytes, grpc_answer: bytes) -> None:
    """Serve both until SIGTERM."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((_Echo(grpc_answer),))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    config = uvicorn.Config(
        _application(rest_answer), port=int(rest_port), http="httptools",
        access_log=False, log_level="warning", lifespan="off",
    )  # fmt: skip
    await uvicorn.Server(config).serve()
    await server.stop(0)


class _Echo(grpc.GenericRpcHandler):
    def __init__(self, answer: bytes) -> None:
        async def reply(_request: bytes, _context: object) -> bytes:
            return answer

        self._handler = grpc.unary_unary_rpc_method_handler(reply)

    def service(self, _details: object) -> grpc.RpcMethodHandler:
        return self._handler


def _application(answer: bytes) -> Callable[..., Awaitable[None]]:
    length = str(len(answer)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]

    async def application(_scope: object, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return application


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        ports, files = sys.argv[1:3], map(Path, sys.argv[3:])
        uvloop.run(main(*ports, *(file.read_bytes() for file in files)))
