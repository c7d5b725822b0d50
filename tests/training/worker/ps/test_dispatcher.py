"""The dispatcher between threads: what is lost comes back, what is closed lets everyone go."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from timonel.training.worker.ps.dispatcher import Dispatcher
from timonel.training.worker.ps.ledger import Ledger, Policy

LOCAL = threading.local()


class Crew:
    """Threads that serve a dispatcher, each as one worker."""

    def __init__(self, dispatcher: Dispatcher, workers: int) -> None:
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._serve, args=(dispatcher, number))
            for number in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, dispatcher: Dispatcher, worker: int) -> None:
        LOCAL.worker = worker
        while True:
            try:
                dispatcher.serve()
            except OSError as error:  # as the coordinator does: it serves again once it is back
                self.errors.append(error)
            else:
                return

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


def _dispatcher(policy: Policy) -> Dispatcher:
    return Dispatcher(Ledger(policy), worker=lambda: LOCAL.worker)


def test_lost_work_is_done_by_others_and_counts_once() -> None:
    dispatcher = _dispatcher(Policy())
    fails = {3, 7}

    def compute(piece: int) -> Any:
        def run(attempt: int) -> int:
            if piece in fails:
                fails.discard(piece)
                raise OSError("gone")
            return piece

        return run

    crew = Crew(dispatcher, 3)
    found = []
    for piece in range(10):
        dispatcher.add(compute(piece))
    while not dispatcher.ledger.is_idle:
        due = dispatcher.wait(lambda: None)
        found += [each.result for each in due]
        dispatcher.counted(due, as_update=True)
    dispatcher.close()
    crew.join()
    assert sorted(found) == list(range(10))
    assert len(crew.errors) == dispatcher.ledger.tally.lost == 2
    assert dispatcher.ledger.tally.updates == 10


def test_an_overtaken_attempt_is_reported_as_uncounted() -> None:
    dispatcher = _dispatcher(Policy(needed=1, synchronous=True))
    go_on = threading.Event()
    begun = threading.Event()

    def slow(attempt: int) -> str:
        if not begun.is_set():
            begun.set()
            go_on.wait(10)
        return "slow"

    crew = Crew(dispatcher, 2)
    dispatcher.add(slow, leaves=True)
    assert begun.wait(10)
    dispatcher.add(lambda attempt: "quick", leaves=True)
    results = []
    while not dispatcher.ledger.is_idle:
        due = dispatcher.wait(lambda: None)
        results += [each.result for each in due]
        dispatcher.counted(due, as_update=True)
    assert results == ["quick", "slow"]
    go_on.set()
    dispatcher.close()
    crew.join()
    assert dispatcher.take_uncounted() == [1]
    assert dispatcher.ledger.tally.dropped + dispatcher.ledger.tally.repeated == 1


def test_the_chief_hears_of_what_went_wrong() -> None:
    dispatcher = _dispatcher(Policy())
    dispatcher.add(lambda attempt: None)

    def check() -> None:
        raise OSError("a parameter server is gone")

    with pytest.raises(OSError, match="is gone"):
        dispatcher.wait(check)
