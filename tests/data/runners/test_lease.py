from __future__ import annotations

from pathlib import Path

import pytest

from timonel.data.runners.exchange import Exchange
from timonel.data.runners.lease import EXPIRY_S, LeaseLostError, LeaseWatch, held
from timonel.errors import InputError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_is_there_while_it_is_held(tmp_path: Path) -> None:
    exchange, clock = Exchange(str(tmp_path)), Clock()
    with held(exchange):
        watch = LeaseWatch(exchange, clock)
        watch.check()
    watch.check()  # not looked at again within a second
    clock.now += 2
    with pytest.raises(LeaseLostError, match="the conversion was stopped"):
        watch.check()
    with pytest.raises(LeaseLostError):  # and again, for the next shard
        watch.check()


def test_a_lease_that_is_not_renewed_expires(tmp_path: Path) -> None:
    exchange, clock = Exchange(str(tmp_path)), Clock()
    exchange.renew(0)
    watch = LeaseWatch(exchange, clock)
    for second in range(3 * int(EXPIRY_S)):
        exchange.renew(second)
        watch.check()
        clock.now += 1
    clock.now += EXPIRY_S - 5
    watch.check()
    clock.now += 10
    with pytest.raises(LeaseLostError, match="the client of the conversion is gone"):
        watch.check()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    exchange = Exchange(str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot write"), held(exchange):
        pass
