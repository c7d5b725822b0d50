from __future__ import annotations

import resource

import pytest

from timonel.processes.descriptors import raise_limit


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 5000), (5000, 5000)),
        ((5000, 5000), None),
        ((1024, resource.RLIM_INFINITY), (2**20, resource.RLIM_INFINITY)),
        ((2**21, 2**22), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_the_soft_limit_goes_up_to_the_hard_one_and_never_down(monkeypatch, before, after):
    told = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    raise_limit()
    assert told == ([] if after is None else [after])


def test_a_system_that_refuses_is_no_obstacle(monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 5000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_limit()
    assert "cannot raise the limit of 1024 open files" in caplog.text
