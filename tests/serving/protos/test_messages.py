from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# Imports the protos and both skins, tells what that loaded, then wants TensorFlow after all.
LIGHT = """
import hashlib, json, sys
from timonel.serving.protos import messages
from timonel.serving.protocols.tfs_grpc import server
from timonel.serving.protocols.tfs_rest import api
heavy = [
    name
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("tensorflow", "keras", "jax")
    and not name.endswith("_pb2")
    and not hasattr(module, "__path__")
]
digests = {
    name: hashlib.sha256(getattr(messages, name).DESCRIPTOR.serialized_pb).hexdigest()
    for name in messages.__all__
}
print(json.dumps([heavy, len(sys.modules), "tensorflow" in sys.modules, digests]))
"""
THEN_TENSORFLOW = """
import tensorflow as tf
assert tf.train.Example is messages.example_pb2.Example
assert tf.compat.v1.ConfigProto is messages.config_pb2.ConfigProto
proto = tf.make_tensor_proto([1.0, 2.0])
request = messages.predict_pb2.PredictRequest()
request.inputs["x"].CopyFrom(proto)
assert tf.make_ndarray(request.inputs["x"]).tolist() == [1.0, 2.0]
assert int(tf.constant(2) + 2) == 4
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import ops
"""


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def light():
    return json.loads(run(LIGHT))


def test_tensorflow_stays_out(light):
    heavy, count, is_there, _ = light
    assert not heavy
    assert not is_there
    # TensorFlow alone has some 3,000.
    assert count < 900


def test_the_messages_are_tensorflows_own(light):
    pytest.importorskip("tensorflow")
    from timonel.serving.protos import messages

    assert light[3] == {
        name: hashlib.sha256(getattr(messages, name).DESCRIPTOR.serialized_pb).hexdigest()
        for name in messages.__all__
    }


def test_tensorflow_may_follow():
    pytest.importorskip("tensorflow")
    run(LIGHT + THEN_TENSORFLOW)
