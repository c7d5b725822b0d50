"""Accessors of pandas: ``df.timonel`` and, for users of TFRecorder, ``df.tensorflow``.

Import this module to register them. ``import timonel`` does not, because it would have to import
pandas, or work only after pandas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pandas as pd

from timonel.arguments import checked
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.sources.frames import locate
from timonel.data.tfrecorder import write_tfrecorder
from timonel.errors import SpecError

_SCHEMA = {"split": "SplitKey", "image_uri": "ImageUri", "label": "StringLabel"}


@pd.api.extensions.register_dataframe_accessor("timonel")
class TimonelAccessor:
    """Conversion of a DataFrame to a dataset."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def to_tfrecords(self, destination: str | os.PathLike[str], **options: Any) -> Dataset:
        """Convert the rows, or the images that they list, to a dataset.

        Args:
            destination: The folder to create, or its URI in a bucket.
            options: Those of `timonel.convert`.
        """
        return checked()(convert)(self._frame, destination, **options)


@pd.api.extensions.register_dataframe_accessor("tensorflow")
class TFRecorderAccessor:
    """Conversion of a DataFrame to the layout of TFRecorder, with its arguments."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    @checked()
    def to_tfr(  # noqa: PLR0913, PLR0917 - TFRecorder's arguments
        self,
        output_dir: str | os.PathLike[str],
        schema_map: Mapping[str, Any] | None = None,
        runner: str = "DirectRunner",
        project: str | None = None,
        region: str | None = None,
        tfrecorder_wheel: str | None = None,
        dataflow_options: Mapping[str, Any] | None = None,
        job_label: str = "to-tfr",
        compression: str | None = "gzip",
        num_shards: int = 0,
    ) -> dict[str, Any]:
        """Write the images that the rows list as TFRecorder does.

        Only the columns ``split``, ``image_uri`` and ``label``, and the runner ``DirectRunner``,
        are supported; use `timonel.convert` for others.

        Args:
            output_dir: Folder in which a folder with the records is created, or its URI.
            schema_map: None, or the columns above with TFRecorder's types.
            runner: ``DirectRunner``.
            project: None.
            region: None.
            tfrecorder_wheel: None.
            dataflow_options: None.
            job_label: Last part of the folder's name.
            compression: ``gzip``, or None.
            num_shards: Number of files per split; 0 for one.

        Returns:
            ``job_id``, ``metrics`` and ``tfrecord_dir``, as TFRecorder.
        """
        dataflow = (project, region, tfrecorder_wheel, dataflow_options)
        if runner != "DirectRunner" or any(value is not None for value in dataflow):
            raise SpecError(
                f"to_tfr() runs on this machine only, got the runner {runner}",
                hint="use df.timonel.to_tfrecords(..., runner='beam', beam='runner=...')",
            )
        given = {name: getattr(kind, "__name__", kind) for name, kind in (schema_map or {}).items()}
        if given and given != _SCHEMA:
            raise SpecError(
                f"to_tfr() writes the columns split, image_uri and label only, got {given}",
                hint="use df.timonel.to_tfrecords() for other tables",
            )
        if num_shards < 0 or "/" in job_label:
            raise SpecError(
                f"expected num_shards of 0 or more and a job_label without '/', got {num_shards} "
                f"and {job_label!r}",
                hint="leave them out",
            )
        return write_tfrecorder(
            locate(self._frame),
            output_dir,
            name=f"{job_label.replace('_', '-')}",
            compression=compression,
            shards=max(1, num_shards),
        )
