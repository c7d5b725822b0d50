"""Bodies that are no JSON: content types, images and texts."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.rest.bodies import Media, PlainBody, decode_request, media_of, read_request
from timonel.serving.rest.codec import RequestBody
from timonel.serving.runtimes.base import TensorSpec
from timonel.serving.status import Code, StatusError

JPEG = Media("image/jpeg")
TEXT = Media("text/plain")


def spec(dtype, *shape):
    return TensorSpec("t:0", dtype, shape)


IMAGE = {"image_bytes": spec("DT_STRING", -1)}
ROW = {
    "age": spec("DT_FLOAT", -1),
    "name": spec("DT_STRING", -1),
    "seats": spec("DT_INT32", -1, 1),
    "paid": spec("DT_BOOL", -1),
}


def decoded(body, media, specs):
    request = read_request(body, media)
    arrays = decode_request(request, specs)
    return {name: array.tolist() for name, array in arrays.items()}, request.by_row


def refusal(call, *arguments, **options):
    with pytest.raises(StatusError) as caught:
        call(*arguments, **options)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        ("image/jpeg", JPEG),
        ("Image/PNG ; q=1", Media("image/png")),
        ("application/octet-stream", Media("application/octet-stream")),
        ("text/plain", TEXT),
        ("text/plain;charset=UTF-8", Media("text/plain", "utf-8")),
        ("text/csv", None),
        ("application/json", None),
        ("application/x-www-form-urlencoded", None),
        ("json", None),
        ("", None),
        ("multipart/form-data; boundary=x", None),
    ],
)
def test_a_content_type_says_what_a_body_is(content_type, media):
    assert media_of(content_type) == media


@pytest.mark.parametrize(
    "charset", ["no-such", "rot13", "undefined", "punycode", "idna", "a\0b", "''"]
)
def test_a_charset_that_is_none_is_refused(charset):
    assert "charset" in refusal(media_of, f"text/plain; charset={charset}")


@given(st.text(max_size=60))
def test_no_content_type_fails_otherwise(content_type):
    with contextlib.suppress(StatusError):
        media_of(content_type)


def test_an_image_or_a_text_is_the_one_string_that_the_model_takes():
    assert decoded(b"\xff\xd8\0", JPEG, IMAGE) == ({"image_bytes": [b"\xff\xd8\0"]}, True)
    assert decoded(b" a text\n", TEXT, IMAGE) == ({"image_bytes": [b" a text\n"]}, True)
    assert decoded(b"", TEXT, {"t": spec("DT_STRING", -1, 1)}) == ({"t": [[b""]]}, True)
    assert decoded(b"x", JPEG, {"t": spec("DT_STRING")}) == ({"t": b"x"}, False)
    assert decoded(b"x", JPEG, {"t": TensorSpec("t", "DT_STRING")}) == ({"t": [b"x"]}, True)


def test_texts_become_utf_8():
    latin = Media("text/plain", "latin-1")
    assert decoded("ä".encode("latin-1"), latin, IMAGE)[0] == {"image_bytes": ["ä".encode()]}
    utf16 = Media("text/plain", "utf-16")
    assert refusal(decoded, b"\xff", utf16, IMAGE) == "expected text in utf-16, got other bytes"


@pytest.mark.parametrize(
    "specs",
    [{"x": spec("DT_FLOAT", -1, 4)}, ROW, {}, {"x": spec("DT_STRING", -1, 2, 2)}],
    ids=["floats", "several", "none", "too deep"],
)
def test_an_image_fits_nothing_else(specs):
    words = refusal(decoded, b"\xff", JPEG, specs)
    assert words.startswith("expected a signature with one input of strings for a body of image/")
    assert all(name in words for name in specs)


@pytest.mark.parametrize("name", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("key", ["instances", "inputs"])
def test_json_is_json_where_a_client_did_not_say_so(name, key):
    request = read_request(b"\n" + json.dumps({key: ["a"]}).encode(), media_of(name))
    assert isinstance(request, RequestBody)
    assert request.by_row == (key == "instances")


@pytest.mark.parametrize("body", [b"{", b'{"text": 1}', b"{\xff", b"{}", b"hello {"])
def test_a_text_with_a_brace_is_a_text(body):
    assert isinstance(read_request(body, TEXT), PlainBody)


def test_an_image_is_never_json():
    assert isinstance(read_request(b'{"instances": []}', JPEG), PlainBody)


def test_without_a_content_type_of_its_own_a_body_is_json():
    assert isinstance(read_request(b'{"instances": []}', None), RequestBody)
    refusal(read_request, b"\xff\xd8", None)
