"""Bounds of a conversion: decode all images at an eighth, or copy and hash the files.

usage: decode.py SOURCE
       decode.py SOURCE DESTINATION
"""

import hashlib
import io
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image


def decode(path):
    image = Image.open(io.BytesIO(path.read_bytes()))
    image.draft(image.mode, (image.width // 8, image.height // 8))
    image.load()


def copy(path):
    copied = Path(sys.argv[2]) / path.name
    shutil.copyfile(path, copied)
    hashlib.sha256(copied.read_bytes()).digest()


files = sorted(path for folder in Path(sys.argv[1]).iterdir() for path in folder.iterdir())
if len(sys.argv) == 3:
    Path(sys.argv[2]).mkdir()
with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    for _ in pool.map(copy if len(sys.argv) == 3 else decode, files, chunksize=64):
        pass
