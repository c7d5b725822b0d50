"""The launcher of tasks in pods, without pods: a test connects in their place."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.engines.kubernetes.specs import spec
from timonel.engines import RoleSpec
from timonel.engines.coordination import lifecycle as on
from timonel.engines.kubernetes import launcher as module
from timonel.engines.kubernetes.launcher import KubernetesLauncher
from timonel.engines.kubernetes.links import SILENT_S, Member
from timonel.processes.loop import Channel, Loop

pytestmark = pytest.mark.enable_socket

_POD = Member("worker-0", "host", "job-worker-0-abcde")


class ImmediateFiles:
    """Does all work at once."""

    def ask(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def then(self, done: Callable[[], None]) -> None:
        done()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The launcher's clock."""
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def discarded() -> list[str]:
    return []


@pytest.fixture
def kept() -> list[str]:
    return []


@pytest.fixture
def launcher(
    now: list[float], discarded: list[str], kept: list[str]
) -> Iterator[KubernetesLauncher]:
    loop = Loop(())
    launcher = KubernetesLauncher(
        spec=spec(),
        loop=loop,
        emit=lambda _: None,
        token="secret",
        listener=socket.create_server(("127.0.0.1", 0)),
        files=cast("Any", ImmediateFiles()),
        welcome=lambda: {"index": {}, "grace_s": 20.0},
        take=lambda *_: None,
        resize=lambda _: None,
        discard_pod=discarded.append,
        keep_pod=kept.append,
    )
    yield launcher
    launcher.listener.close()
    for pod in tuple(launcher._connected):
        launcher.disconnect(pod.link)
    loop.close()


@pytest.fixture
def join(launcher: KubernetesLauncher) -> Iterator[Callable[..., Channel]]:
    """Connects as a pod, and joins."""
    channels = []

    def join(pod: Member = _POD) -> Channel:
        channels.append(Channel(socket.create_connection(launcher.listener.getsockname())))
        channels[-1].send(pod.join("secret"))
        while pod.task_id not in launcher.joined:
            launcher.loop.wait(1.0)
        return channels[-1]

    yield join
    for channel in channels:
        channel.close()


def lose(launcher: KubernetesLauncher, channel: Channel) -> None:
    channel.close()
    while launcher.joined:
        launcher.loop.wait(1.0)


def test_a_pod_that_does_not_join_again_is_deleted_once_its_task_has_stopped(
    launcher: KubernetesLauncher,
    join: Callable[[], Channel],
    now: list[float],
    discarded: list[str],
) -> None:
    lose(launcher, join())
    now[0] += SILENT_S + launcher.spec.stop_grace_s
    launcher.check(lambda _: None)
    assert discarded == []
    now[0] += 1
    launcher.check(lambda _: None)
    launcher.check(lambda _: None)
    assert discarded == [_POD.pod]


def test_a_pod_that_joins_again_is_kept(
    launcher: KubernetesLauncher,
    join: Callable[[], Channel],
    now: list[float],
    discarded: list[str],
    kept: list[str],
) -> None:
    lose(launcher, join())
    kept.clear()
    join()
    now[0] += 1000
    launcher.check(lambda _: None)
    assert discarded == []
    assert kept == [_POD.pod]  # also if the cluster could not delete it yet


def test_a_pod_that_has_pinged_before_it_is_heard_joins(launcher: KubernetesLauncher) -> None:
    channel = Channel(socket.create_connection(launcher.listener.getsockname()))
    channel.send(_POD.join("secret"))
    channel.send({"kind": "ping"})
    launcher.loop.wait(1.0)  # accepts
    launcher.loop.wait(1.0)
    assert launcher.joined == {"worker-0": _POD}
    channel.close()


def test_a_pod_that_leaves_before_it_is_welcomed_is_not_there(
    launcher: KubernetesLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel(socket.create_connection(launcher.listener.getsockname()))
    for message in (_POD.join("secret"), {"kind": "leaving"}, {"kind": "leaving"}):
        channel.send(message)
    launcher.loop.wait(1.0)  # accepts
    launcher.loop.wait(1.0)
    assert launcher.joined == {}
    assert "refused" not in caplog.text
    channel.close()
    launcher.loop.wait(1.0)


def test_an_elastic_job_does_without_pods_that_have_not_come_within_a_minute(
    launcher: KubernetesLauncher, join: Callable[..., Channel], now: list[float]
) -> None:
    told: list[on.Event] = []
    launcher.emit = told.append
    launcher.spec = spec(RoleSpec(name="worker", replicas=3, min_replicas=1))
    channel = join(Member("worker-1", "host", "job-worker-1-abcde"))
    launcher.start(on.StartGeneration(1, {"worker": 3}), None)
    launcher.check(lambda _: None)
    assert told == [on.TasksPending(1, "waiting for 2 of 3 pods")]
    now[0] += 61
    channel.send({"kind": "ping"})
    launcher.loop.wait(1.0)
    launcher.check(lambda _: None)
    assert told[1:] == [on.TasksMissing(1, ("worker-0", "worker-2"))]


def test_a_killed_task_whose_pod_does_not_join_again(
    launcher: KubernetesLauncher,
    join: Callable[[], Channel],
    now: list[float],
    discarded: list[str],
) -> None:
    join()
    launcher.start(on.StartGeneration(1, {"worker": 1}), None)
    launcher.kill(on.KillTasks(1, ("worker-0",)))
    assert launcher.joined == {}
    now[0] += SILENT_S + launcher.spec.stop_grace_s + 1
    launcher.check(lambda _: None)
    assert discarded == [_POD.pod]


def test_a_pod_that_leaves_is_not_deleted(
    launcher: KubernetesLauncher,
    join: Callable[[], Channel],
    now: list[float],
    discarded: list[str],
) -> None:
    channel = join()
    channel.send({"kind": "leaving"})
    while launcher.joined:
        launcher.loop.wait(1.0)
    channel.close()
    launcher.loop.wait(1.0)
    now[0] += 1000
    launcher.check(lambda _: None)
    assert discarded == []


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (3, 3)])
def test_no_task_has_an_address_of_the_generation_before(
    launcher: KubernetesLauncher, join: Callable[..., Channel], sizes: tuple[int, int]
) -> None:
    launcher.spec = spec(RoleSpec(name="worker", replicas=3, min_replicas=1))
    for index in range(3):
        join(Member(f"worker-{index}", "host", f"job-worker-{index}-abcde"))
    seen: set[str] = set()
    for generation in range(1, 8):
        size = sizes[generation % 2]
        launcher.start(on.StartGeneration(generation, {"worker": size}), None)
        addresses = {
            start.assignment["cluster"]["worker"][start.assignment["task"]["index"]]
            for start in launcher.starts.values()
        }
        assert len(addresses) == size
        assert not addresses & seen
        seen = addresses
        launcher.starts.clear()
