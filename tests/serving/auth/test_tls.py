"""Certificates from files and from TensorFlow Serving's SSLConfig, mutual TLS, and grpc alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl

import grpc
import pytest

from tests.serving.auth.certificates import Authority
from timonel.errors import SpecError
from timonel.serving.auth.access import ServerAccess
from timonel.serving.auth.tls import (
    read_ssl_config,
    rest_context,
)
from timonel.serving.protos.text import TextProtoError
from timonel.serving.settings.auth import AccessSettings, LimitSettings, TlsSettings
from timonel.serving.status import StatusError


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.pem)
    for name in ("server", "robot"):
        authority.issue(folder, name)
    Authority("other").issue(folder, "stranger")
    return folder


def text_of(place, name):
    return json.dumps((place / name).read_text())


def config(place, **changes):
    fields = {
        "server_key": text_of(place, "server.key"),
        "server_cert": text_of(place, "server.pem"),
        "custom_ca": text_of(place, "ca.pem"),
        "client_verify": "true",
        **changes,
    }
    return "\n".join(f"{name}: {value}" for name, value in fields.items() if value)


def read(folder, text):
    path = folder / "f"
    path.write_text(text)
    return read_ssl_config(str(path))


def test_an_ssl_config_holds_the_texts_themselves(place, tmp_path):
    pem = read(tmp_path, config(place))
    assert pem.certificate == (place / "server.pem").read_bytes()
    assert pem.key == (place / "server.key").read_bytes()
    assert pem.client_ca == (place / "ca.pem").read_bytes()
    assert pem.is_required
    plain = read(tmp_path, config(place, custom_ca=None, client_verify=None))
    assert (plain.client_ca, plain.is_required) == (None, False)
    assert read_ssl_config(None) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"custom_ca": None}, "client_verify is set in .*f, but custom_ca"),
        ({"server_key": None}, "server_key or server_cert is missing in .*f"),
        ({"nonsense": "3"}, "Invalid protobuf file: '.*f'"),
        ({"server_key": "["}, "Invalid protobuf file: '.*f'"),
    ],
)
def test_ssl_configs_that_are_refused(place, tmp_path, changes, message):
    with pytest.raises((SpecError, TextProtoError), match=message):
        read(tmp_path, config(place, **changes))


def test_an_ssl_config_that_is_not_there(tmp_path):
    with pytest.raises(StatusError, match="No such file or directory"):
        read_ssl_config(str(tmp_path / "nope"))


def tls(place, certificate="server.pem", key="server.key", **options):
    return TlsSettings(certificate=str(place / certificate), key=str(place / key), **options)


def test_files_that_are_refused(place, tmp_path):
    for wrong in (
        tls(place, key="robot.key"),
        tls(place, certificate="nope"),
        tls(place, certificate="server.key"),
        tls(place, client_ca=str(place / "server.key")),
    ):
        with pytest.raises(SpecError, match="cannot use the certificate and private key"):
            rest_context(wrong)


async def _serving(access):
    """A gRPC server with one method outside of all tables, that answers whom it was asked by."""

    async def who(request, context):
        return b",".join(context.auth_context()["x509_common_name"])

    guard = access.grpc_guard()
    server = grpc.aio.server(interceptors=guard.interceptors, options=guard.arguments)
    handlers = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_secure_port("127.0.0.1:0", guard.credentials)
    await server.start()
    return server, port


async def _ask(place, port, client=None):
    pair = [(place / f"{client}{end}").read_bytes() for end in (".key", ".pem")] if client else []
    trust = grpc.ssl_channel_credentials((place / "ca.pem").read_bytes(), *pair)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trust) as channel:
        try:
            answer = await channel.unary_unary("/test.Test/Who")(b"", timeout=10)
            return answer.decode()
        except grpc.aio.AioRpcError as error:
            return error.code().name


@pytest.mark.parametrize("by_config", [True, False])
def test_mutual_tls_admits_and_names_clients(place, by_config):
    path = place / "ssl.config"
    path.write_text(config(place))
    rules = (
        {"ssl_config_file": str(path), "limits": LimitSettings(max_requests=1)}
        if by_config
        else {"tls": tls(place, client_ca=str(place / "ca.pem"))}
    )

    async def run():
        server, port = await _serving(ServerAccess(AccessSettings(**rules)))
        try:
            assert await _ask(place, port, "robot") == "robot"
            assert await _ask(place, port) == "UNAVAILABLE"
            assert await _ask(place, port, "stranger") == "UNAVAILABLE"
        finally:
            await server.stop(0)

    asyncio.run(run())


def test_a_rest_context_requires_certificates(place):
    context = rest_context(tls(place, client_ca=str(place / "ca.pem")))
    assert context.current().verify_mode is ssl.CERT_REQUIRED
    assert context.current().minimum_version is ssl.TLSVersion.TLSv1_2
    with contextlib.suppress(ssl.SSLError):
        made = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
        assert made.context is context.current()


def test_tls_is_said_once(place):
    with pytest.raises(ValueError, match="tls cannot be combined with ssl_config_file"):
        AccessSettings(tls=tls(place), ssl_config_file="x")
