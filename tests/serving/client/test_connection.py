from __future__ import annotations

import base64
import http.server
import json
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.serving.auth.certificates import Authority
from timonel.errors import ServingError
from timonel.models.schema import WARMUP_FILE
from timonel.serving.client.connection import (
    ClientSignature,
    HttpConnection,
    Input,
    UntrustedError,
    parse_signature,
)
from timonel.serving.client.curl import curl_line, stored_row
from timonel.serving.runtimes.saved_model import as_warmup_file

SPEC = {"model_spec": {"name": "m", "version": "3"}}


def metadata(signatures):
    return {**SPEC, "metadata": {"signature_def": {"signature_def": signatures}}}


def test_a_signature_is_read_from_metadata():
    shape = {"unknown_rank": False, "dim": [{"size": "-1"}, {"size": "2"}]}
    found = parse_signature(
        metadata(
            {
                "serving_default": {
                    "inputs": {
                        "x": {"dtype": "DT_FLOAT", "tensor_shape": shape},
                        "a": {"dtype": "DT_STRING", "tensor_shape": {"unknown_rank": True}},
                    },
                    "outputs": {"y": {}},
                }
            }
        )
    )
    assert found == ClientSignature(
        "m",
        3,
        (Input("a", "DT_STRING", None), Input("x", "DT_FLOAT", (-1, 2))),
        ("y",),
    )
    assert found.description == "a (string []), x (float [?, 2])"


def test_a_model_without_the_default_signature_is_told():
    with pytest.raises(
        ServingError, match="no signature serving_default with inputs; its signatures: other"
    ):
        parse_signature(metadata({"other": {"inputs": {"x": {}}}}))


def sent(line, tmp_path):
    """Run a line with a curl that prints the body it is given."""
    curl = tmp_path / "curl"
    curl.write_text('#!/bin/sh\nwhile [ "$1" != -d ]; do shift; done\n'
                    'if [ "$2" = @- ]; then cat; else printf %s "$2"; fi\n')  # fmt: skip
    curl.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env=environment)
    return json.loads(done.stdout)["instances"]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            [("it's", "DT_STRING", (-1,)), ("n", "DT_INT64", (-1, 1)), ("b", "DT_BOOL", (-1,))],
            [{"it's": "text", "n": [1], "b": True}],
        ),
        ([("x", "DT_FLOAT", (-1, 2, 2))], [[[1.0, 1.0], [1.0, 1.0]]]),
        pytest.param(
            [("x", "DT_FLOAT", (-1, 20, 3, 4))],
            [[[[1.0] * 4] * 3] * 20],
            marks=pytest.mark.process,
        ),
        pytest.param(
            [("x", "DT_STRING", (-1, 40, 2))], [[["text"] * 2] * 40], marks=pytest.mark.process
        ),
        ([("x", "DT_FLOAT", (-1, -1, 3))], [[[1.0, 1.0, 1.0]]]),
    ],
)
def test_the_line_sends_what_the_signature_wants(inputs, expected, tmp_path):
    model = ClientSignature("m", 1, tuple(Input(*each) for each in inputs), ("y",))
    assert sent(curl_line("http://127.0.0.1:1/x?y&z", model), tmp_path) == expected


def test_the_line_sends_the_first_warm_up_request(tmp_path):
    rows = {
        "town_bytes": np.array([b"K\xf6ln", b"Ulm"], object),
        "day": np.array([b"2026-01-31", b""], object),
        "x": np.array([[0.1, 2.0], [3.0, 4.0]], np.float32),
        "long": np.array([b"a" * 600, b""], object),
        "many": np.ones((2, 65), np.float32),
        "unknown": np.ones(2, np.float32),
        "empty": np.array([np.nan, 1], np.float32),
        "holes": np.array([[np.nan, 1], [1, 1]], np.float32),
    }
    (tmp_path / WARMUP_FILE).parent.mkdir()
    (tmp_path / WARMUP_FILE).write_bytes(as_warmup_file([("serving_default", rows)]))
    shapes = {"x": (-1, 2), "many": (-1, 1), "empty": (-1,), "holes": (-1, 2)}
    inputs = tuple(
        Input(name, "DT_FLOAT" if name in shapes else "DT_STRING", shapes.get(name, (-1,)))
        for name in rows
        if name != "unknown"
    )
    model = ClientSignature("m", 1, inputs, ("y",))
    (sent_row,) = sent(curl_line("http://127.0.0.1:1", model, row=stored_row(tmp_path)), tmp_path)
    assert sent_row == {
        "town_bytes": {"b64": base64.b64encode(b"K\xf6ln").decode()},
        "day": "2026-01-31",
        "x": [0.1, 2.0],
        "long": "text",
        "many": [1.0],
        "empty": None,
        "holes": [1.0, 1.0],
    }
    only = ClientSignature("m", 1, (Input("x", "DT_FLOAT", (-1, 2)),), ("y",))
    line = curl_line("http://127.0.0.1:1", only, row=stored_row(tmp_path))
    assert sent(line, tmp_path) == [[0.1, 2.0]]


def test_an_image_is_sent_whatever_its_name_and_size(tmp_path):
    file = tmp_path / "an image's $name.png"
    file.write_bytes(b"\x00" * 300_000)
    model = ClientSignature("m", 1, (Input("image_bytes", "DT_STRING", (-1,)),), ("y",))
    (image,) = sent(curl_line("http://127.0.0.1:1", model, image=str(file)), tmp_path)
    assert image == {"b64": "A" * 400_000}


@pytest.mark.process
def test_an_unknown_authority_and_a_missing_https_are_told(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority().issue(tmp_path, "server"))
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with (
            HttpConnection(f"https://127.0.0.1:{server.server_port}") as connection,
            pytest.raises(UntrustedError, match="is not trusted: unable to get") as caught,
        ):
            connection.get("/v1/models")
        thread.join()
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with (
            HttpConnection(url) as connection,
            pytest.raises(
                ServingError, match=f": if it uses TLS, use {url.replace('http', 'https')}"
            ),
        ):
            connection.get("/v1/models")
        thread.join()
    assert caught.value.hint == ("give that of its authority with --tls-ca or TIMONEL_TLS_CA")
