"""A folder of label folders in the layout of TFRecorder: pixels in base64, GZIP.

usage: tfrecorder_layout.py SOURCE DESTINATION
"""

import sys
from pathlib import Path

import pandas as pd

import timonel.data.pandas  # noqa: F401 - registers the accessor

files = sorted(path for folder in Path(sys.argv[1]).iterdir() for path in folder.iterdir())
rows = [("TRAIN", str(path), path.parent.name) for path in files]
frame = pd.DataFrame(rows, columns=["split", "image_uri", "label"])
frame.tensorflow.to_tfr(output_dir=sys.argv[2])
