"""Call functions ahead in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def call_ahead(
    calls: Iterable[Callable[[], _Result]], *, threads: int, ahead: int, name: str
) -> Generator[_Result, None, None]:
    """Yield the results of calls in order; closing the generator cancels calls that wait.

    Args:
        calls: The functions; taken in the calling thread.
        ahead: Number of results that may wait.
        name: Prefix of the threads' names.
    """
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        try:
            for call in calls:
                pending.append(pool.submit(call))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
