"""Bodies that are no JSON: content types, images, texts and rows of CSV."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.rest.bodies import Media, PlainBody, decode_request, media_of, read_request
from timonel.serving.rest.codec import RequestBody
from timonel.serving.rest.tables import table
from timonel.serving.runtimes.base import NUMPY_TYPES, TensorSpec
from timonel.serving.status import Code, StatusError

JPEG = Media("bytes", "image/jpeg")
TEXT = Media("text", "text/plain")
CSV = Media("csv", "text/csv")
WHOLE = f"expected a whole number from {-(2**31)} to {2**31 - 1}"
HEADER_HINT = "if it is a header, say Content-Type: text/csv; header=present"


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
        ("Image/PNG ; q=1", Media("bytes", "image/png")),
        ("application/octet-stream", Media("bytes", "application/octet-stream")),
        ("text/plain", TEXT),
        ("text/plain;charset=UTF-8", Media("text", "text/plain", "utf-8")),
        ("text/csv", CSV),
        ("text/csv; header=present", Media("csv", "text/csv", header=True)),
        ('text/csv; header="absent"; charset=latin-1', Media("csv", "text/csv", "latin-1", False)),
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
    assert "charset" in refusal(media_of, f"text/csv; charset={charset}")


def test_a_header_is_there_or_not():
    assert refusal(media_of, "text/csv; header=maybe").endswith("header=absent, got maybe")


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
    latin = Media("text", "text/plain", "latin-1")
    assert decoded("ä".encode("latin-1"), latin, IMAGE)[0] == {"image_bytes": ["ä".encode()]}
    utf16 = Media("text", "text/plain", "utf-16")
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


@pytest.mark.parametrize(
    "text",
    [
        'age,name,seats,paid\n20,Ada,2,true\n-1.5,"Bo, ""B""",3,0\n',
        'seats,age, paid ,extra,name\r\n2,20,TRUE,9,Ada\r\n\r\n3,-1.5,false,9,"Bo, ""B"""\r\n',
        '20,Ada,2,1\n-1.5,"Bo, ""B""",3,0',
    ],
    ids=["header", "other order and more", "no header"],
)
def test_rows_become_columns_of_the_signatures_types(text):
    arrays = table(text, ROW)
    assert arrays["age"].tolist() == [20, -1.5]
    assert arrays["name"].tolist() == [b"Ada", b'Bo, "B"']
    assert arrays["seats"].tolist() == [[2], [3]]
    assert arrays["paid"].tolist() == [True, False]
    assert all(array.dtype == NUMPY_TYPES[ROW[name].dtype] for name, array in arrays.items())


def test_an_empty_cell_is_a_number_that_is_missing():
    assert np.isnan(table(",a,1,1\n  ,,1,1\nNA,,1,1\n ? ,,1,1", ROW)["age"]).all()


def test_a_row_may_be_one_list():
    assert table("1,2\n3,4\n", {"x": spec("DT_FLOAT", -1, 2)})["x"].tolist() == [[1, 2], [3, 4]]
    open_ = {"x": spec("DT_STRING", -1, -1)}
    assert table("a,b,c\n", open_)["x"].tolist() == [[b"a", b"b", b"c"]]
    with_header = table("a,b,c\n1,2,3\n", {"x": spec("DT_INT64", -1, 3)}, header=True)
    assert with_header["x"].tolist() == [[1, 2, 3]]


def test_a_value_that_is_a_columns_name_is_one_where_that_is_said():
    names = {"name": spec("DT_STRING", -1)}
    assert table("name\nAda\n", names)["name"].tolist() == [b"Ada"]
    assert table("name\nAda\n", names, header=False)["name"].tolist() == [b"name", b"Ada"]


def test_the_ends_of_the_integers_and_other_types_of_numbers():
    for dtype, values in (
        ("DT_UINT64", [0, 1, 2**64 - 1]),
        ("DT_INT64", [-(2**63), 2**63 - 1]),
        ("DT_INT8", [-128, 127]),
        ("DT_HALF", [0.5, float("inf")]),
        ("DT_BFLOAT16", [0.5]),
        ("DT_DOUBLE", [0.1]),
    ):
        found = table("\n".join(map(str, values)), {"x": spec(dtype, -1)})["x"]
        assert found.dtype == NUMPY_TYPES[dtype]
        assert found.astype(object).tolist() == values
    assert np.isinf(table("1e39", {"x": spec("DT_FLOAT", -1)})["x"]).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected rows of CSV, got none"),
        ("age,name,seats,paid\n", "expected rows of CSV, got none"),
        ("age,name\n1,Ada\n", "expected the columns age, name, seats, paid, got age, name"),
        ("1,Ada\n", "row 1: expected 4 values (age, name, seats, paid), got 2"),
        ("age,name,seats,paid\n1,A,1,1\n1\n", "row 2: expected 4 values, got 1"),
        ("1,A,1,1\nx,A,1,1\n", "row 2, column age: expected a number, got 'x'"),
        ("1,A,,1\n", f"row 1, column seats: {WHOLE}, got ''"),
        ("1,A,1,1\n1,A,1,maybe\n", "row 2, column paid: expected true or false, got 'maybe'"),
        ("1,A,1.5,1\n", f"row 1, column seats: {WHOLE}, got '1.5'; {HEADER_HINT}"),
        ("1,A,1,1\n1,A,2147483648,1", f"row 2, column seats: {WHOLE}, got '2147483648'"),
        ('"1', "expected CSV, got unexpected end of data"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(text, words):
    assert refusal(table, text, ROW) == words


def test_images_are_no_rows():
    specs = {"x": spec("DT_FLOAT", -1, 8, 8, 2), "y": spec("DT_FLOAT", -1)}
    assert "takes x (float [?,8,8,2]), y (float [?]); send JSON" in refusal(table, "1", specs)
    refusal(table, "1", {})


def test_a_byte_order_mark_is_no_part_of_the_first_name():
    body = "\ufeffage\n1\n".encode()
    assert decoded(body, CSV, {"age": spec("DT_FLOAT", -1)}) == ({"age": [1.0]}, True)


@given(st.text(max_size=200), st.sampled_from([None, True, False]))
def test_no_text_fails_otherwise(text, header):
    for specs in (ROW, {"x": spec("DT_INT8", -1, 2)}):
        with contextlib.suppress(StatusError):
            arrays = table(text, specs, header=header)
            assert len({len(array) for array in arrays.values()}) == 1


@pytest.mark.parametrize("separator", [",", "\n"])
def test_csv_has_a_limit_of_cells(separator):
    text = separator.join(["1"] * 100_002)
    assert "Send fewer rows" in refusal(decoded, text.encode(), CSV, ROW)
