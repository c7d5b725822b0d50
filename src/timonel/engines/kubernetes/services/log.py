"""Output of replicas, read from their pods."""

from __future__ import annotations

import time
from collections.abc import Iterator

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError
from timonel.engines.kubernetes.names import REPLICA
from timonel.engines.kubernetes.pods import timestamp
from timonel.errors import NotFoundError, SpecError

_POLL_S = 0.5
_ENDED = frozenset({"Succeeded", "Failed"})


def replica_lines(api: Api, pod: str, *, follow: bool) -> Iterator[str]:
    """Yield lines of a replica's output.

    Args:
        follow: Continue until the pod is gone, with the output of its next starts.
    """
    last: str | None = None
    while True:
        try:
            for stamp, text in _stamped(api, pod, last, follow=follow):
                last = stamp
                yield text
            if not follow or api.get("Pod", pod)["status"].get("phase") in _ENDED:
                return
        except NotFoundError:
            return
        except SpecError:  # its container has not started yet
            if not follow:
                return
        except ClusterUnavailableError:
            if not follow:
                raise
        time.sleep(_POLL_S)


def _stamped(api: Api, pod: str, after: str | None, *, follow: bool) -> Iterator[tuple[str, str]]:
    """Yield lines with their times, from the first one after a time."""
    for line in api.log_lines(pod, REPLICA, since=after, follow=follow):
        stamp, _, text = line.partition(" ")
        # The server takes whole seconds.
        if after is not None and (stamp == after or timestamp(stamp) < timestamp(after)):
            continue
        yield stamp, text
