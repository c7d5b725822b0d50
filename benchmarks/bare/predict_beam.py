"""By hand: predict a folder of photographs with Apache Beam's RunInference.

usage: predict_beam.py MODEL SOURCE OUT OPTION...
"""

import io
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image

SIZE = 160


def load(path):
    image = Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.float32)
    return path, pixels / 127.5 - 1


class Handler(ModelHandler):
    """A Keras model, as Beam's own handler, which needs tensorflow-hub, has it."""

    def __init__(self, path):
        self.path = path

    def load_model(self):
        import keras

        return keras.saving.load_model(self.path)

    def run_inference(self, batch, model, inference_args=None):  # noqa: ARG002 - of the interface
        return model(np.stack(batch), training=False).numpy()

    def batch_elements_kwargs(self):
        return {"min_batch_size": 32, "max_batch_size": 32}


class Write(beam.DoFn):
    """Write all predictions to one file."""

    def __init__(self, out):
        self.out = out

    def process(self, rows):
        keys, scores = zip(*rows, strict=True)
        pq.write_table(pa.table({"key": list(keys), "scores": list(map(list, scores))}), self.out)


def main():
    model, source, out, *options = sys.argv[1:]
    files = sorted(map(str, Path(source).rglob("*.jpg")))
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        _ = (
            pipeline
            | beam.Create(files)
            | beam.Reshuffle()
            | beam.Map(load)
            | RunInference(KeyedModelHandler(Handler(model)))
            | beam.Map(lambda pair: (None, (pair[0], pair[1].tolist())))
            | beam.GroupByKey()
            | beam.Values()
            | beam.ParDo(Write(out))
        )


if __name__ == "__main__":
    main()
