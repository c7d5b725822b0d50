"""What can be set of the gRPC server."""

from __future__ import annotations

from dataclasses import dataclass

_INT32 = range(-(2**31), 2**31)
# 2 GiB, the most that protobuf takes; the number means no limit for neither side.
_MAX_MESSAGE = 2**31 - 1

ChannelArguments = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class GrpcOptions:
    """The gRPC side of a server.

    Args:
        address: Host and port to listen on; none for no TCP.
        socket_path: A Unix socket to listen on as well; none for no such.
        channel_arguments: What gRPC calls channel arguments; they win over ours.
        health: Whether ``grpc.health.v1`` is offered.
        reflection: Whether clients may ask for the services and their protos.
        tensor_content: Whether Predict answers with ``tensor_content`` instead of typed fields.
        check_method_names: Whether a signature must be declared for the method it is used with.
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
        """Return all channel arguments; of two with the same name the later one holds."""
        ours: dict[str, int | str] = {
            "grpc.max_receive_message_length": _MAX_MESSAGE,
            "grpc.max_send_message_length": _MAX_MESSAGE,
            # Without this, a second server on the same port would start and take half the calls.
            "grpc.so_reuseport": 0,
        }
        return list((ours | dict(self.channel_arguments)).items())


def parse_channel_arguments(text: str) -> ChannelArguments:
    """Return ``k=v,k=v`` as channel arguments; a value that reads as an int32 is a number.

    Raises:
        ValueError: An item has no ``=``.
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
