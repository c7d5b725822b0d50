"""By hand: load a SavedModel and answer one image; prints ``MARK answered <unix seconds>``.

usage: load_and_call.py SAVED_MODEL IMAGE
"""

import sys
import time
from pathlib import Path

import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"](
    image_bytes=tf.constant([Path(sys.argv[2]).read_bytes()])
)
print({name: value.numpy().tolist() for name, value in answer.items()})
print("MARK answered", time.time(), flush=True)
