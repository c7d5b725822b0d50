"""Pages of endpoints, served by a real control plane."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endpoints.harness import Endpoints, predict
from tests.waiting import until
from timonel.cli.main import run
from timonel.endpoints import Endpoint

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: 2}


@pytest.fixture(scope="module")
def endpoint(endpoints: Endpoints) -> Endpoint:
    """An endpoint that requires the key ``verysecretkey12345``."""
    keys = endpoints.workspace.root / "keyfile.txt"
    keys.write_text("me=verysecretkey12345\n")
    found = endpoints.deploy("digits/1", min_replicas=1, max_replicas=2, api_keys=str(keys))
    found.wait()
    return found


def page(endpoint: Endpoint, part: str = "") -> str:
    address = endpoint.page_url
    assert address is not None
    response = httpx.get(f"{address}{part}", timeout=30)
    assert response.status_code == 200, response.text
    return response.text


def history(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page(endpoint, "/history"))
    return found


def test_load_and_replicas_are_shown(endpoint: Endpoint) -> None:
    def is_measured() -> bool:
        predict(endpoint, headers={"x-api-key": "verysecretkey12345"})
        found = history(endpoint)
        return any(found["rates"].get("1", ())) and any(found["ready"]) and any(found["desired"])

    until(is_measured, seen=lambda: history(endpoint))
    assert list(history(endpoint)["rates"]) == ["1"]
    until(lambda: "Autoscaler: " in page(endpoint), seen=lambda: page(endpoint))
    text = page(endpoint)
    assert ">Ready</span>" in text
    assert f"{endpoint.url}/v1/models/digits" in text
    assert "<dd>1 of 1</dd>" in text


def test_the_list_links_to_each_page(endpoint: Endpoint) -> None:
    assert endpoint.page_url is not None
    address = httpx.URL(endpoint.page_url)
    response = httpx.get(address.copy_with(path="/"))
    assert response.status_code == 200
    assert f'<a href="{address.path}">' in response.text


def test_keys_and_their_files_are_not_shown(endpoint: Endpoint) -> None:
    file = Path(str(endpoint.spec.access.api_keys))
    content = file.read_text()
    try:
        file.write_text("damaged")
        until(lambda: endpoint.status.message, seen=lambda: endpoint.status)
        assert str(file) in str(endpoint.status.message)
        text = page(endpoint)
        assert "they stay as they were" in text
    finally:
        file.write_text(content)
    assert str(file) not in text
    assert "verysecretkey" not in text


def test_other_host_names_and_methods_are_refused(endpoint: Endpoint) -> None:
    assert endpoint.page_url is not None
    assert httpx.get(endpoint.page_url, headers={"host": "evil.example"}).status_code == 403
    assert httpx.post(endpoint.page_url).status_code == 405


def test_the_command_line_prints_the_address(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--workspace", str(endpoint.workspace.root), "endpoints", "show", "digits"]
    address = endpoint.page_url
    assert address is not None
    assert run(command) == 0
    assert address in capsys.readouterr().out
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page_url"] == address


def test_the_history_outlives_a_killed_control_plane(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    until(lambda: len(history(endpoint)["at"]) >= 2)
    before, address = history(endpoint), endpoint.page_url
    (killed,) = endpoints.kill_control()

    def is_back() -> bool:
        with contextlib.suppress(httpx.HTTPError, AssertionError):
            return len(history(endpoint)["at"]) > len(before["at"])
        return False

    until(is_back, seen=lambda: endpoint.page_url)
    assert endpoints.pids("endpoints-controller") != [killed]
    assert endpoint.page_url == address
    assert history(endpoint)["at"][: len(before["at"])] == before["at"]
