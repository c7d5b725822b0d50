"""By hand: label folders into shards of TFRecords with Apache Beam, every image decoded.

usage: convert_beam.py SOURCE DESTINATION SHARDS OPTION...
"""

import io
import random
import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image


class WriteShard(beam.DoFn):
    """Write a shard of the images in its list."""

    def __init__(self, destination):
        self.destination = destination

    def process(self, shard):
        import tensorflow as tf

        name, files = shard
        with tf.io.TFRecordWriter(f"{self.destination}/{name}") as writer:
            for path, label in files:
                content = Path(path).read_bytes()
                image = Image.open(io.BytesIO(content))
                image.draft("RGB", (image.width // 8, image.height // 8))
                image.load()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        yield name


def main():
    source, destination, shards = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    destination.mkdir(parents=True)
    folders = sorted(source.iterdir())
    files = [(str(path), i) for i, name in enumerate(folders) for path in sorted(name.iterdir())]
    random.Random(0).shuffle(files)
    plan = [(f"{i:05d}.tfrecord", files[i::shards]) for i in range(shards)]
    with beam.Pipeline(options=PipelineOptions(sys.argv[4:])) as pipeline:
        _ = (
            pipeline
            | beam.Create(plan)
            | beam.Reshuffle()
            | beam.ParDo(WriteShard(str(destination.resolve())))
        )


if __name__ == "__main__":
    main()
