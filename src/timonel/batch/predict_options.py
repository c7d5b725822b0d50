"""Options of `timonel.predict_batch` and ``timonel predict --batch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from timonel.models.safety.trust_options import TrustOptions
from timonel.options import Option
from timonel.serving.signature import DEFAULT_SIGNATURE

BATCH = "Batch prediction"


class BatchOptions(TrustOptions, total=False):
    """Options of a batch prediction."""

    split: Annotated[
        str | None,
        Option(
            None,
            "Split of a dataset to predict. The output has its keys and true labels.",
            BATCH,
            metavar="NAME",
        ),
    ]
    key: Annotated[
        str | None,
        Option(
            None,
            "Column with the keys.",
            BATCH,
            computed="path of the image, or FILE#ROW",
            metavar="COLUMN",
        ),
    ]
    keep: Annotated[
        Sequence[str],
        Option((), "Columns of the input to copy to the output.", BATCH, metavar="COLUMN,..."),
    ]
    input_format: Annotated[
        Literal["images", "csv", "jsonl", "parquet", "tfrecord"] | None,
        Option(None, "Format of the input.", BATCH, computed="by the names of the files"),
    ]
    format: Annotated[
        Literal["parquet", "jsonl", "csv", "tfrecord"] | None,
        Option(None, "Format of a folder of predictions.", BATCH, computed="parquet"),
    ]
    signature: Annotated[
        str, Option(DEFAULT_SIGNATURE, "Signature of the model to run.", BATCH, metavar="NAME")
    ]
    batch_size: Annotated[
        int | None,
        Option(
            None,
            "Rows per batch.",
            BATCH,
            computed="32 images, or the rows that fill 1 MiB, if the version has evidence that "
            "rows are independent, else 1",
        ),
    ]
    max_errors: Annotated[
        float,
        Option(
            0.01,
            "Greatest fraction of rows without a prediction. They are listed in a file.",
            BATCH,
        ),
    ]
    allow_http: Annotated[
        bool, Option(False, "Also read images that a table lists over plain http.", BATCH)
    ]
    allow_private: Annotated[
        bool,
        Option(False, "Also read images that a table lists from private addresses.", BATCH),
    ]
    raw: Annotated[
        bool,
        Option(
            False,
            "Write texts to CSV as they are, also formulas. By default those that a spreadsheet "
            "would take for one, such as =1+1, start with an apostrophe.",
            BATCH,
        ),
    ]
    overwrite: Annotated[bool, Option(False, "Replace existing predictions.", BATCH)]
    runner: Annotated[
        str, Option("local", "Where shards are predicted: local, beam or a plug-in.", BATCH)
    ]
    beam: Annotated[
        str,
        Option(
            "",
            "Options of Apache Beam's pipeline, such as runner=FlinkRunner,flink_master=HOST:PORT.",
            BATCH,
            metavar="NAME=VALUE,...",
        ),
    ]
