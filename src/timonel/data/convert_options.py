"""Options of `timonel.convert`, ``timonel convert`` and ``timonel data schema``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from timonel.data.rejected import DEFAULT_LIMIT
from timonel.data.schema import COLUMN_TYPE_NAMES, Compression, ImageCheck, Task
from timonel.options import Option

# Sections of the command line's help.
TABLES = "Tables"
SPLITS = "Splits and shards"
IMAGES = "Images"
FILES = "Text files"
WORK = "The conversion"


class SchemaOptions(TypedDict, total=False):
    """Options that say what the source is."""

    kind: Annotated[
        str,
        Option(
            "auto",
            "Type of the source: auto, images, table, or a plug-in's.",
            TABLES,
            metavar="auto|images|table",
        ),
    ]
    label: Annotated[
        str | None, Option(None, "Column that models shall predict.", TABLES, metavar="NAME")
    ]
    columns: Annotated[
        Mapping[str, str] | None,
        Option(
            None,
            f"Types of columns, instead of the inferred ones: {COLUMN_TYPE_NAMES}.",
            TABLES,
            metavar="NAME=TYPE,...",
        ),
    ]
    task: Annotated[
        Task | None,
        Option(
            None,
            "Task, instead of the inferred one. With 'multilabel' a row has several labels, as "
            "a|b or a list.",
            TABLES,
        ),
    ]
    group_by: Annotated[
        str | None,
        Option(
            None,
            "Column whose equal values keep rows in one split, such as a patient.",
            TABLES,
            metavar="NAME",
        ),
    ]
    delimiter: Annotated[
        str | None,
        Option(None, "Separator of the values of a CSV file.", FILES, computed="detected"),
    ]
    encoding: Annotated[
        str | None,
        Option(None, "Encoding of a CSV or JSON lines file.", FILES, computed="detected"),
    ]
    column_names: Annotated[
        Sequence[str],
        Option((), "Column names of a CSV file without a header.", FILES, metavar="NAME,..."),
    ]


class ConvertOptions(SchemaOptions, total=False):
    """Options of a conversion."""

    schema: Annotated[
        Any,
        Option(
            None,
            "YAML or JSON file with columns and labels, as of 'timonel data schema', or a dataset. "
            "In Python also a mapping, or what `timonel.data.schema_of` returns. Nothing is "
            "inferred, labels and vocabularies keep their numbers, and columns or labels that are "
            "not listed are errors.",
            TABLES,
            metavar="FILE|DATASET",
        ),
    ]
    max_vocabulary: Annotated[
        int,
        Option(
            1000,
            "Words of a category or text; rarer ones count as unknown, with a warning.",
            TABLES,
            least=1,
        ),
    ]
    splits: Annotated[
        Sequence[float] | None,
        Option(
            None,
            "Approximate fractions of train, validation and test; two are train and validation. "
            "Records are divided by hashes, so the shares of each label vary.",
            SPLITS,
            computed="the splits of the source, else 0.8,0.1,0.1",
            metavar="FRACTION,...",
        ),
    ]
    seed: Annotated[int, Option(0, "Seed of the split and the order.", SPLITS)]
    shards: Annotated[
        int | None, Option(None, "Number of training shards.", SPLITS, computed="by size")
    ]
    shard_bytes: Annotated[
        int | str,
        Option("64MB", "Largest size of a shard, before compression.", SPLITS, metavar="SIZE"),
    ]
    compression: Annotated[
        Compression,
        Option("none", "Compression of the shards. Images hardly get smaller.", SPLITS),
    ]
    folders: Annotated[
        Literal["auto", "labels", "splits"],
        Option("auto", "What the top-level folders of images name.", IMAGES),
    ]
    image_size: Annotated[
        tuple[int, int] | None,
        Option(
            None,
            "Scale larger images down, to no less than this height and width. The aspect ratio "
            "is kept, so `load` with this size loses nothing.",
            IMAGES,
            computed="unchanged",
            metavar="HEIGHT,WIDTH",
        ),
    ]
    image_format: Annotated[
        Literal["jpeg", "png", "webp"] | None,
        Option(None, "Re-encode images of other formats.", IMAGES),
    ]
    quality: Annotated[
        int | None,
        Option(
            None,
            "Quality, 1 to 100, to re-encode JPEG and WebP images with. By default 90 for those "
            "whose size or format changes; others are unchanged.",
            IMAGES,
        ),
    ]
    check: Annotated[
        ImageCheck,
        Option(
            "structure",
            "How to check JPEG and PNG images; others are always decoded. 'structure' walks "
            "through their segments, which finds truncated and overwritten files.",
            IMAGES,
        ),
    ]
    allow_http: Annotated[
        bool, Option(False, "Also read images that a table lists over plain http.", IMAGES)
    ]
    allow_private: Annotated[
        bool,
        Option(
            False,
            "Also read images that a table lists from private addresses. The server of the table "
            "itself is always allowed.",
            IMAGES,
        ),
    ]
    overwrite: Annotated[bool, Option(False, "Replace an existing dataset.", WORK)]
    max_rejected: Annotated[
        float,
        Option(
            DEFAULT_LIMIT,
            "Greatest fraction of unusable records. The dataset lists them in rejected.jsonl.",
            WORK,
        ),
    ]
    runner: Annotated[
        str, Option("local", "Where shards are written: local, beam or a plug-in.", WORK)
    ]
    beam: Annotated[
        str,
        Option(
            "",
            "Options of Apache Beam's pipeline, such as runner=FlinkRunner,flink_master=HOST:PORT.",
            WORK,
            metavar="NAME=VALUE,...",
        ),
    ]
