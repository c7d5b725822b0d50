"""Kill processes of an endpoint under load, and count lost answers."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import grpc
import httpx
import pytest

from tests.endpoints.harness import Endpoints, GrpcClient, Load, channel_to
from tests.waiting import until
from timonel.endpoints import Endpoint
from timonel.endpoints.control.service import SERVICE as CONTROL
from timonel.endpoints.gateway.parts import PROTOCOLS, cluster_name
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.gateway.process import Admin, admin_socket, runtime_dir
from timonel.endpoints.spec import service_name
from timonel.processes.ports import UNIX
from timonel.processes.tree import descendants

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: {"factor": 2, "deadly": -1.0, "load_s": 2.0}}
MOST_CRASHES = 7
SERVICE = service_name("digits", 1)


def test_a_kill_of_a_server_loses_no_large_request(endpoints: Endpoints) -> None:
    endpoint = endpoints.deploy("digits/1", min_replicas=2, max_replicas=2)
    until(lambda: _is_whole(endpoints, endpoint))
    body = b'{"instances":[0.05]}'.ljust(4 << 20)
    found: Counter[str] = Counter()
    ends = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not ends.is_set():
                answer = client.post(f"{endpoint.url}/v1/models/digits:predict", content=body)
                found["right" if answer.status_code == HTTPStatus.OK else answer.text] += 1

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask) for _ in range(4)]
        for _ in range(3):
            before = found.total()
            until(lambda: found.total() > before + 20)  # noqa: B023 - called at once
            for server in descendants(endpoints.pids(SERVICE)[0]):
                os.kill(server, signal.SIGKILL)
            until(lambda: _is_whole(endpoints, endpoint))
        ends.set()
        for each in clients:
            each.result()
    assert set(found) == {"right"}, found


def test_a_kill_of_any_process_but_the_gateways_loses_no_request(endpoints: Endpoints) -> None:
    endpoint = endpoints.deploy("digits/1", min_replicas=2, max_replicas=2)
    until(lambda: _is_whole(endpoints, endpoint))
    kinds = {
        "parent of a server": lambda: endpoints.pids(SERVICE)[:1],
        "server": lambda: descendants(endpoints.pids(SERVICE)[0]),
        "supervisor of replicas": lambda: [endpoints.supervisor(SERVICE).pid],
        "control plane": lambda: endpoints.pids(CONTROL),
        "supervisor of the control plane": lambda: [endpoints.supervisor(CONTROL).pid],
        "supervisor of the gateway": lambda: [endpoints.supervisor(GATEWAY).pid],
    }
    for kind, pids in kinds.items():
        with Load(endpoint, 3, by_grpc=3) as load:
            killed = list(pids())
            assert killed, kind
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            load.more(300)
            until(lambda: _is_whole(endpoints, endpoint))
            load.more(100)
        assert (kind, load.failures, load.asked) == (kind, [], load.answered)


@pytest.mark.parametrize("by_grpc", [False, True])
def test_a_request_crashes_few_replicas_also_while_there_is_none(
    endpoints: Endpoints, by_grpc: bool
) -> None:
    arguments = ("--runtime", "faulty", "--no-page")
    endpoint = endpoints.deploy(
        "digits/2", name="deadly", min_replicas=2, max_replicas=2, server_args=arguments
    )
    died = endpoints.workspace.models / "digits" / "died-2"
    died.unlink(missing_ok=True)
    with Load(endpoint, 4, by_grpc=4) as load:
        if by_grpc:
            with channel_to(endpoint) as deadly, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                GrpcClient(deadly).ask(-1.0)
        else:
            url = f"{endpoint.url}/v1/models/digits:predict"
            answer = httpx.post(url, json={"instances": [-1.0]}, timeout=120)
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            assert not [name for name in answer.headers if "lost" in name]
        load.more(50)
    assert 2 <= died.stat().st_size <= MOST_CRASHES


def _is_whole(endpoints: Endpoints, endpoint: Endpoint) -> bool:
    """Return whether both replicas answer and the gateway takes neither for lost.

    Their states and the gateway's hosts lag behind a kill; two kills at once may lose requests.
    """
    replicas = endpoints.service(endpoint).ready
    (gateway,) = endpoints.engine.service(GATEWAY).ready
    port = gateway.addresses["ready"].rpartition(":")[2]
    admin = Admin.at(admin_socket(runtime_dir(endpoints.workspace.endpoints), port))
    hosts = [admin.healthy_hosts(cluster_name(SERVICE, protocol)) for protocol in PROTOCOLS]
    return (
        len(replicas) == 2
        and all(_answers(replica.addresses["http"]) for replica in replicas)
        and hosts == [3, 3]  # the one that holds requests counts
    )


def _answers(address: str) -> bool:
    return Admin.at(Path(address.removeprefix(UNIX))).get("/v1/models/digits") is not None
