"""Combine descriptor pools for server reflection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class DescriptorPools:
    """Search several descriptor pools in order.

    Args:
        pools: The pools; the first match wins.
    """

    def __init__(self, *pools: Any) -> None:
        self._pools = pools

    def FindFileByName(self, name: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the descriptor of a file."""
        return self._first(lambda pool: pool.FindFileByName(name), name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the descriptor of the file that defines a symbol."""
        return self._first(lambda pool: pool.FindFileContainingSymbol(symbol), symbol)

    def FindMessageTypeByName(self, name: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the descriptor of a message."""
        return self._first(lambda pool: pool.FindMessageTypeByName(name), name)

    def FindExtensionByNumber(self, message: Any, number: int) -> Any:  # noqa: N802 - protobuf's
        """Return the descriptor of a message's extension."""
        return message.file.pool.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Any) -> Iterable[Any]:  # noqa: N802 - protobuf's name
        """Return the descriptors of a message's extensions."""
        extensions: Iterable[Any] = message.file.pool.FindAllExtensions(message)
        return extensions

    def _first(self, find: Callable[[Any], Any], what: str) -> Any:
        for pool in self._pools:
            try:
                return find(pool)
            except KeyError:
                continue
        raise KeyError(what)
