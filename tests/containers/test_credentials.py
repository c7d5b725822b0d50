from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from timonel.containers.credentials import RegistryCredentials, credentials_for
from timonel.errors import InputError

_AUTH = base64.b64encode(b"ada:s3cret:x").decode()


def write(path: Path, **content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("key", ["r.example:5000", "https://r.example:5000/v2/"])
def test_dockers_file(home: Path, key: str) -> None:
    write(home / ".docker/config.json", auths={key: {"auth": _AUTH}})
    assert credentials_for("r.example:5000", {}, home) == RegistryCredentials("ada", "s3cret:x")
    assert credentials_for("other.example", {}, home) is None


def test_docker_hubs_own_key(home: Path) -> None:
    write(home / ".docker/config.json", auths={"https://index.docker.io/v1/": {"auth": _AUTH}})
    assert credentials_for("registry-1.docker.io", {}, home) == RegistryCredentials(
        "ada", "s3cret:x"
    )


def test_an_identity_token(home: Path) -> None:
    write(
        home / ".docker/config.json",
        auths={"r.example": {"auth": _AUTH, "identitytoken": "secret-t"}},
    )
    found = credentials_for("r.example", {}, home)
    assert found is not None
    assert found.is_token
    assert "secret-t" not in repr(found)


def test_podmans_file_and_the_one_that_a_variable_names(home: Path, tmp_path: Path) -> None:
    write(home / ".config/containers/auth.json", auths={"r.example": {"auth": _AUTH}})
    assert credentials_for("r.example", {}, home) == RegistryCredentials("ada", "s3cret:x")
    other = base64.b64encode(b"bob:1").decode()
    write(tmp_path / "auth.json", auths={"r.example": {"auth": other}})
    variables = {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    assert credentials_for("r.example", variables, home) == RegistryCredentials("bob", "1")


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A credential helper that knows r.example only."""
    program = tmp_path / "bin/docker-credential-test"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\nread host\n"
        'if [ "$host" = r.example ]; then echo \'{"Username": "eve", "Secret": "k"}\'\n'
        "else echo credentials not found in native keychain; exit 1; fi\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


@pytest.mark.parametrize("config", [{"credHelpers": {"r.example": "test"}}, {"credsStore": "test"}])
def test_credential_helpers(home: Path, helper: Path, config: dict[str, object]) -> None:
    write(home / ".docker/config.json", **config)
    assert credentials_for("r.example", {}, home) == RegistryCredentials("eve", "k")
    assert credentials_for("other.example", {}, home) is None


def test_a_missing_helper_is_named(home: Path) -> None:
    write(home / ".docker/config.json", credsStore="absent")
    with pytest.raises(InputError, match="docker-credential-absent is not installed"):
        credentials_for("r.example", {}, home)


def test_a_helper_that_fails(home: Path, helper: Path) -> None:
    helper.write_text("#!/bin/sh\necho the keychain is locked >&2; exit 2\n")
    write(home / ".docker/config.json", credsStore="test")
    with pytest.raises(InputError, match="the keychain is locked"):
        credentials_for("r.example", {}, home)


@pytest.mark.parametrize("auth", ["%%%", base64.b64encode(b"nobody").decode()])
def test_damaged_credentials(home: Path, auth: str) -> None:
    write(home / ".docker/config.json", auths={"r.example": {"auth": auth}})
    with pytest.raises(InputError, match="are damaged"):
        credentials_for("r.example", {}, home)


def test_a_damaged_file(home: Path) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read .*config\.json"):
        credentials_for("r.example", {}, home)
