"""Tokens: the honest ones, and the known ways to forge one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.serving.auth.tokens import CLAIMS, NOW, elliptic, jwks, rsa, token
from timonel.errors import CorruptError, ServingError
from timonel.serving.auth.control import Authenticator, RequestCredentials
from timonel.serving.auth.policy import Principal
from timonel.serving.auth.tokens import (
    RETRY_S,
    FetchedKeys,
    Header,
    TokenError,
    key_source,
    parse_keys,
    verify,
)
from timonel.serving.settings.auth import AccessSettings, JwtSettings, parse_grant
from timonel.serving.status import Code, StatusError

ISSUER = {"issuer": CLAIMS["iss"], "audience": CLAIMS["aud"]}
SETTINGS = JwtSettings(**ISSUER, jwks="keys.json", leeway_s=30)
KEYS = parse_keys(jwks(rsa(), elliptic()), "test")


def check(text, keys=KEYS, settings=SETTINGS, now=NOW):
    return verify(text, keys, settings, now)


def part(value):
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_a_token_says_who_and_what():
    principal, expires = check(token())
    assert principal == Principal("alice", (parse_grant("predict,metadata:digits*"),))
    assert expires == CLAIMS["exp"] + 30
    assert check(token(elliptic(), "ES256"))[0] == principal
    assert check(token(algorithm="PS256"))[0] == principal
    assert check(token(header={"kid": "one"}))[0] == principal


def test_permissions_come_from_the_claim_and_from_the_settings():
    settings = JwtSettings(
        **ISSUER, jwks="x", permissions_claim="roles", allow=("status:*", "metadata:*")
    )
    allowed = (parse_grant("status:*"), parse_grant("metadata:*"))
    assert check(token(), settings=settings)[0].grants == allowed
    roles = ["predict:m", 3, "admin"]
    found = check(token(roles=roles), settings=settings)[0].grants
    assert found == (*allowed, parse_grant("predict:m"))


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://issuer.example/"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": ["another"]},
        {"sub": None},
        {"sub": ""},
        {"sub": 3},
        {"exp": None},
        {"exp": NOW - 30},
        {"exp": str(NOW + 600)},
        {"exp": True},
        {"exp": float("nan")},
        {"exp": float("inf")},
        {"exp": 10**400},
        {"nbf": NOW + 31},
        {"nbf": "soon"},
    ],
    ids=str,
)
def test_claims_that_do_not_count(changes):
    with pytest.raises(TokenError):
        check(token(**changes))


def test_clocks_may_be_a_little_apart():
    assert check(token(exp=NOW - 29, nbf=NOW + 29, aud=["x", "timonel"]))


def test_a_token_without_a_signature():
    claims = part(CLAIMS)
    for algorithm in ("none", "None", "NONE", ""):
        with pytest.raises(TokenError):
            check(f"{part({'alg': algorithm, 'kid': 'one'})}.{claims}.")
        with pytest.raises(TokenError):
            check(f"{part({'alg': algorithm})}.{claims}.{token().rpartition('.')[2]}")
    head, body, _ = token().split(".")
    with pytest.raises(TokenError):
        check(f"{head}.{body}.")


@pytest.mark.parametrize("as_pem", [True, False])
def test_the_public_key_is_no_shared_secret(as_pem):
    """RS256 turned into HS256, signed with what everybody knows."""
    public = rsa().as_pem(private=False) if as_pem else jwks(rsa()).encode()
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(CLAIMS)}"
    mac = hmac.new(public, signed.encode(), hashlib.sha256).digest()
    with pytest.raises(TokenError):
        check(f"{signed}.{part(mac)}")


def test_shared_secrets_cannot_be_configured():
    for algorithm in ("HS256", "none", "RSA1_5", ""):
        with pytest.raises(ValidationError, match="unknown algorithm"):
            JwtSettings(**ISSUER, jwks="x", algorithms=(algorithm,))
    secret = {"keys": [{"kty": "oct", "k": part(b"secret" * 8), "kid": "one"}]}
    with pytest.raises(CorruptError, match="no public key for signatures"):
        parse_keys(json.dumps(secret), "test")


def test_another_key_and_a_key_that_the_token_brings():
    mallory = rsa("mallory")
    public = mallory.as_dict(private=False)
    for header in (
        {"kid": "one"},
        {"kid": "one", "jwk": public},
        {"kid": "one", "jku": "https://evil.example/keys"},
        {"kid": "mallory", "jwk": public},
        {"kid": "../../etc/passwd"},
    ):
        with pytest.raises(TokenError):
            check(token(mallory, header=header))


def test_a_key_is_for_its_algorithm_curve_and_use_only():
    only = {**rsa().as_dict(private=False), "alg": "RS512"}
    with pytest.raises(TokenError):
        check(token(), parse_keys(json.dumps({"keys": [only]}), "test"))
    with pytest.raises(TokenError):
        check(token(elliptic(), "ES256"), settings=JwtSettings(**ISSUER, jwks="x",
                                                               algorithms=("ES384",)))  # fmt: skip
    for change in ({"use": "enc"}, {"key_ops": ["sign"]}, {"n": "x"}, {"kty": "LMS"}):
        with pytest.raises(CorruptError):
            parse_keys(json.dumps({"keys": [{**only, **change}]}), "test")


def test_changed_content_and_headers_that_must_be_understood():
    head, body, signature = token().split(".")
    forged = part({**CLAIMS, "sub": "root"})
    with pytest.raises(TokenError):
        check(f"{head}.{forged}.{signature}")
    critical = part({"alg": "RS256", "kid": "one", "crit": ["exp"]})
    with pytest.raises(TokenError):
        check(f"{critical}.{body}.{signature}")


@settings(max_examples=40)
@given(st.text(max_size=60) | st.binary(max_size=60).map(part).map("{0}.{0}.{0}".format))
def test_anything_is_refused(text):
    with pytest.raises(TokenError):
        check(text)


@settings(max_examples=40)
@given(st.recursive(st.none() | st.text(max_size=4) | st.floats(), st.lists, max_leaves=4))
def test_any_header_is_refused(value):
    with pytest.raises(TokenError):
        check(f"{part({'alg': value, 'kid': value})}.{part(CLAIMS)}.{part(b'x')}")


def test_deep_and_long_tokens():
    deep = part(b'{"alg":' + b"[" * 5000 + b"]" * 5000 + b"}")
    for text in (f"{deep}.{part(CLAIMS)}.x", "a" * 20_000 + "..", token() + "." + "b" * 17_000):
        with pytest.raises(TokenError):
            check(text)


# The issuer's keys


class Issuer:
    """Answers with keys, or not, and counts; moves a clock."""

    def __init__(self, *keys):
        self.keys = keys
        self.is_down = False
        self.fetches = 0
        self.now = 0.0

    def fetch(self):
        self.fetches += 1
        if self.is_down:
            raise ServingError("down")
        return jwks(*self.keys).encode()

    def source(self, **options):
        settings = JwtSettings(**ISSUER, jwks="https://issuer.example/keys", **options)
        return FetchedKeys(self.fetch, settings, lambda: self.now)


async def kids(source, issuer, kid="one", algorithm="RS256"):
    found = await source.get(Header(algorithm, kid), issuer.now)
    return [key.key_id for key in found]


def test_keys_are_fetched_once_and_then_in_the_background():
    async def run():
        issuer = Issuer(rsa())
        source = issuer.source(refresh_s=100)
        both = await asyncio.gather(kids(source, issuer), kids(source, issuer))
        assert both == [["one"], ["one"]]
        assert issuer.fetches == 1
        issuer.now = 99
        assert await kids(source, issuer) == ["one"]
        assert issuer.fetches == 1
        issuer.keys, issuer.now = (rsa(), elliptic()), 100
        assert await kids(source, issuer) == ["one"]
        if source._task is not None:
            await source._task
        assert await kids(source, issuer) == ["one", "curve"]
        assert issuer.fetches == 2

    asyncio.run(run())


def test_a_new_key_is_fetched_when_a_token_names_it_but_not_at_every_token():
    async def run():
        issuer = Issuer(rsa())
        source = issuer.source()
        await kids(source, issuer)
        issuer.keys = (rsa("two"),)
        assert await kids(source, issuer, "two") == ["one"], "asked again at once"
        issuer.now = RETRY_S
        assert await kids(source, issuer, "two") == ["two"]
        for number in range(20):
            assert await kids(source, issuer, f"invented-{number}") == ["two"]
        assert await kids(source, issuer, "two", "HS256") == ["two"]
        assert issuer.fetches == 2

    asyncio.run(run())


def test_old_keys_serve_while_the_issuer_is_down_but_not_for_ever():
    async def run():
        issuer = Issuer(rsa())
        source = issuer.source(refresh_s=100, stale_s=1000)
        await kids(source, issuer)
        issuer.is_down = True
        for issuer.now in (100, 500, 999):
            assert await kids(source, issuer) == ["one"]
            if source._task is not None:
                await source._task
        assert issuer.fetches == 4
        issuer.now = 1000 + RETRY_S
        assert await kids(source, issuer) == []
        issuer.is_down, issuer.now = False, 1000 + 2 * RETRY_S
        assert await kids(source, issuer) == ["one"]

    asyncio.run(run())


def test_a_slow_issuer_does_not_hold_up_a_request_for_ever():
    async def run():
        issuer, released = Issuer(rsa()), __import__("threading").Event()

        def fetch():
            released.wait(5)
            return b""

        source = issuer.source(timeout_s=0.02)
        source._fetch = fetch
        try:
            assert await kids(source, issuer) == []
        finally:
            released.set()

    asyncio.run(run())


def test_keys_in_a_file_follow_it(tmp_path):
    async def run():
        path, issuer = tmp_path / "jwks.json", Issuer()
        settings = JwtSettings(**ISSUER, jwks=str(path))
        with pytest.raises(ServingError, match="cannot read the JWKS file"):
            key_source(settings, lambda: 0.0)
        path.write_text(jwks(rsa()))
        source = key_source(settings, lambda: 0.0)
        assert await kids(source, issuer) == ["one"]
        path.write_text(jwks(rsa(), elliptic()))
        issuer.now = 2
        assert await kids(source, issuer) == ["one", "curve"]
        path.write_text("{}")
        issuer.now = 4
        assert await kids(source, issuer) == ["one", "curve"]

    asyncio.run(run())


def test_keys_come_over_tls():
    for place in ("http://issuer.example/keys", "http://127.0.0.1.evil.example/x"):
        with pytest.raises(ValidationError, match="expected a file or an https URL"):
            JwtSettings(**ISSUER, jwks=place)
    with pytest.raises(ValidationError, match="expected a file or an https URL"):
        JwtSettings(issuer="not a url", audience="x")
    assert JwtSettings(**ISSUER, jwks="http://127.0.0.1:1/keys")


# The whole


def test_a_token_is_remembered_but_not_beyond_its_time_or_its_key(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(jwks(rsa()))
    settings = AccessSettings(jwt=JwtSettings(**ISSUER, jwks=str(path)))
    clock = {"wall": NOW, "mono": 0.0}
    authenticator = Authenticator(settings, lambda: clock["wall"], lambda: clock["mono"])
    text = token()

    async def run():
        async def ask(shown=None):
            try:
                return await authenticator.authenticate(
                    shown or RequestCredentials(text), "address"
                )
            except StatusError as error:
                return error.code

        principal = await ask()
        assert principal.name == "alice"
        assert await ask() is principal
        clock["wall"] = CLAIMS["exp"] + 29
        assert await ask() is principal
        clock["wall"] = CLAIMS["exp"] + 30
        assert await ask() is Code.UNAUTHENTICATED
        clock["wall"] = NOW
        path.write_text(jwks(rsa("two")))
        clock["mono"] = 5.0
        assert await ask() is Code.UNAUTHENTICATED
        for shown in (
            RequestCredentials(),
            RequestCredentials(""),
            RequestCredentials(text, is_ambiguous=True),
            RequestCredentials("tml_x_y"),
            RequestCredentials("\udc80..é"),
            RequestCredentials(certificate=("alice",)),
        ):
            assert await ask(shown) is Code.UNAUTHENTICATED

    asyncio.run(run())
