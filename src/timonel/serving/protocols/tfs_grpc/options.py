"""Options of the gRPC server."""

from __future__ import annotations

from dataclasses import dataclass

_INT32 = range(-(2**31), 2**31)
# 2 GiB, the limit of protobuf. gRPC treats -1 as unlimited, but not this number.
_MAX_MESSAGE = 2**31 - 1

ChannelArguments = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class GrpcOptions:
    """Options of the gRPC server.

    Args:
        address: Host and port to listen on; None for no TCP port.
        socket_path: Unix socket to listen on; None for no socket.
        channel_arguments: gRPC channel arguments; they override the defaults.
        health: Whether to offer ``grpc.health.v1``.
        reflection: Whether to offer server reflection.
        tensor_content: Whether Predict answers with ``tensor_content`` instead of typed fields.
        check_method_names: Whether a signature must be declared for the method that uses it.
        reload: Whether clients may replace the list of models.
    """

    address: str | None = None
    socket_path: str | None = None
    channel_arguments: ChannelArguments = ()
    health: bool = True
    reflection: bool = True
    tensor_content: bool = False
    check_method_names: bool = False
    reload: bool = True

    def arguments(self) -> list[tuple[str, int | str]]:
        """Return all channel arguments, with overrides applied."""
        ours: dict[str, int | str] = {
            "grpc.max_receive_message_length": _MAX_MESSAGE,
            "grpc.max_send_message_length": _MAX_MESSAGE,
            # Without this, a second server on the same port would start and take half the calls.
            "grpc.so_reuseport": 0,
        }
        return list((ours | dict(self.channel_arguments)).items())


def parse_channel_arguments(text: str) -> ChannelArguments:
    """Parse ``k=v,k=v`` as channel arguments; int32 values become numbers.

    Raises:
        ValueError: An item has no name or no ``=``.
    """
    arguments = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"expected name=value in the gRPC channel arguments, got {item}")
        arguments.append((name, _number(value)))
    return tuple(arguments)


def _number(value: str) -> int | str:
    try:
        number = int(value) if value.isascii() and "_" not in value else None
    except ValueError:
        number = None
    return value if number is None or number not in _INT32 else number
