from __future__ import annotations

import pytest

from timonel.containers.reference import Reference
from timonel.errors import SpecError

_DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "version"),
    [
        ("python", "registry-1.docker.io", "library/python", "latest"),
        ("python:3.11-slim", "registry-1.docker.io", "library/python", "3.11-slim"),
        ("docker.io/team/app", "registry-1.docker.io", "team/app", "latest"),
        ("team/app:v1", "registry-1.docker.io", "team/app", "v1"),
        ("localhost/app", "localhost", "app", "latest"),
        ("localhost:5000/team/app:v1", "localhost:5000", "team/app", "v1"),
        ("ghcr.io/a/b/c_d.e--f:V.1_x", "ghcr.io", "a/b/c_d.e--f", "V.1_x"),
        (f"ghcr.io/a@{_DIGEST}", "ghcr.io", "a", _DIGEST),
        (f"ghcr.io/a:v1@{_DIGEST}", "ghcr.io", "a", _DIGEST),
    ],
)
def test_parts_of_names(text: str, host: str, repository: str, version: str) -> None:
    found = Reference.parse(text)
    assert (found.host, found.repository, found.version) == (host, repository, version)
    assert Reference.parse(str(found)).version == version


@pytest.mark.parametrize(
    "text",
    ["", "Team/app", "a//b", "a:", "a:b:c", "ghcr.io/", "-a", "a@sha256:1", "../a", "a b", "a:é"],
)
def test_wrong_names(text: str) -> None:
    with pytest.raises(SpecError, match="is no name of an image"):
        Reference.parse(text)


def test_the_message_has_no_credentials() -> None:
    with pytest.raises(SpecError, match=r"'https://\*\*\*@host/app' is no name"):
        Reference.parse("https://ada:TOKEN@host/app")
