"""The protocol's own clients, each in an environment of its own, against a server of real models.

They bring dependencies that are of no other use here, so the environments are made when this runs,
from the package index.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.conftest import publish
from tests.serving.protocols.v2.models import DTYPES
from timonel.serving import serve
from timonel.storage import find_workspace

CLIENTS = Path(__file__).parent / "clients"
PACKAGES = {"triton": "tritonclient[http,grpc]>=2.73", "kserve_client": "kserve>=0.21"}

pytestmark = pytest.mark.soak


def _types(folder):
    """Save a model that gives back an input of each type."""
    import tensorflow as tf

    kinds = {
        datatype.lower(): tf.as_dtype(dtype.removeprefix("DT_").lower())
        for datatype, dtype in DTYPES.items()
    }

    def echoing(*without):
        specs = {
            name: tf.TensorSpec([None, 2], kind, name=name)
            for name, kind in kinds.items()
            if name not in without
        }

        @tf.function(input_signature=[specs])
        def run(inputs):
            return {f"{name}_out": tf.identity(value) for name, value in inputs.items()}

        return run

    module = tf.Module()
    module.all, module.some, module.few = echoing(), echoing("bf16"), echoing("bf16", "fp16")
    signatures = {
        "serving_default": module.all,
        "without_bf16": module.some,
        "without_16_bits": module.few,
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)


@pytest.fixture(scope="module")
def place(tmp_path_factory, exports):
    place = find_workspace(tmp_path_factory.mktemp("v2") / "workspace")
    _types(exports / "types")
    for name in ("types", "images"):
        (place.models / name).mkdir()
        publish(exports / name, place.models / name, 1)
    return place


@pytest.fixture(scope="module")
def server(place):
    with serve(
        ["types", "images"],
        workspace=place,
        rest_port=0,
        grpc_port=0,
        block=False,
    ) as started:
        yield started


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def client(request, tmp_path_factory):
    """Make an environment with a client; return its script."""
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "-p", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "-q", "-p", python, PACKAGES[request.param]], check=True)
    return python, CLIENTS / f"{request.param}.py"


@pytest.mark.timeout(900)
def test_a_client_gets_what_it_asks_for(server, client, png, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes(png())
    python, script = client
    rest = server.rest_url.removeprefix("http://")
    done = subprocess.run(
        [python, script, rest, server.grpc_address, image],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok"
