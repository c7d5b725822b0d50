"""Convert label folders with tensorflow-datasets: its builder copies the files' bytes.

usage: convert_tfds.py SOURCE DESTINATION
"""

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow_datasets as tfds

source, destination = Path(sys.argv[1]), sys.argv[2]


class Photographs(tfds.core.GeneratorBasedBuilder):
    """Builder of images with labels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        names = sorted(folder.name for folder in source.iterdir())
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=names)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):  # noqa: ARG002
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for folder in sorted(source.iterdir()):
            for path in sorted(folder.iterdir()):
                yield f"{folder.name}/{path.name}", {"image": path, "label": folder.name}


Photographs(data_dir=destination).download_and_prepare()
