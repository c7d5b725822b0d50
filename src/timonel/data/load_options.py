"""Resolve the options of `timonel.data.load` for one dataset. Does not import TensorFlow."""

from __future__ import annotations

import os
from typing import Literal

from timonel.data.dataset import Dataset
from timonel.data.load_registry import LabelMode
from timonel.data.schema import ImageColumn, ImageSchema, MaskColumn, TableSchema
from timonel.errors import InputError, NotFoundError, SpecError
from timonel.units import parse_bytes

_VARIABLE = "TIMONEL_DATA"
_NAMED = f"{_VARIABLE}_"

_LONGEST_SIDE = 65_535
"""Of a JPEG."""
_AUTO_SIDE = 128
"""Takes half the time of 180 pixels; MobileNetV2 has weights for it."""


def dataset_location(name: str | None) -> str:
    """Return the location of the job's dataset of a name, or of its only one."""
    variable = f"{_NAMED}{name.upper()}" if name else _VARIABLE
    found = os.environ.get(variable)
    if found:
        return found
    named = {key: uri for key, uri in sorted(os.environ.items()) if key.startswith(_NAMED)}
    if name is None and len(named) == 1:
        return next(iter(named.values()))  # unambiguous
    if name is None and named:
        choice = " or ".join(f"load(name={key.removeprefix(_NAMED).lower()!r})" for key in named)
        raise NotFoundError(
            f"the job has {len(named)} datasets, and no name was given", hint=f"call {choice}"
        )
    option = f"--data {name}=URI" if name else "--data URI"
    raise NotFoundError(
        f"no path given, and the environment variable {variable} is not set",
        hint=f"call load(path), or run the script with 'timonel train ... {option}'",
    )


def shared_size(
    schema: TableSchema, size: tuple[int, int] | Literal["auto"] | None, uri: str
) -> tuple[int, int] | None:
    """Return one size for all images and masks of a table, which must match."""
    found = [each for each in schema.columns if isinstance(each, ImageColumn | MaskColumn)]
    if size is not None and not found:
        raise SpecError(
            f"image_size= is for images, which {uri} does not have", hint="leave it out"
        )
    if size != "auto":
        return size
    first = min(found, key=lambda column: column.type, default=None)  # an image before a mask
    return None if first is None else image_size_of(first, "auto", uri)


def image_size_of(
    schema: ImageSchema | ImageColumn | MaskColumn,
    size: tuple[int, int] | Literal["auto"] | None,
    uri: str,
) -> tuple[int, int]:
    """Return the height and width of batches; ``uri`` is for messages."""
    if size == "auto":
        side = min(schema.height.median, schema.width.median)
        height, width = schema.size or (side, side)
        factor = min(1, _AUTO_SIDE / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))
    if size is not None:
        if not 1 <= min(size) <= max(size) <= _LONGEST_SIDE:
            raise SpecError(
                f"expected image_size= as (height, width) in pixels, got {size}",
                hint=f"use numbers from 1 to {_LONGEST_SIDE:,}",
            )
        return int(size[0]), int(size[1])
    if schema.size is None:
        raise InputError(
            f"image_size is required: the images of {uri} have different sizes "
            f"({schema.height.minimum}x{schema.width.minimum} to "
            f"{schema.height.maximum}x{schema.width.maximum})",
            hint=f"use image_size=({schema.height.median}, {schema.width.median}), for example, "
            'or "auto"',
        )
    return schema.size


def channels_of(schema: ImageSchema | ImageColumn, requested: int | None) -> Literal[1, 3, 4]:
    """Return the channels of batches."""
    # TensorFlow decodes GIF, BMP and WebP to three channels only, and transparency of PNG only.
    formats = set(schema.formats)
    allowed: tuple[Literal[1, 3, 4], ...] = (1, 3)
    if formats & {"gif", "bmp", "webp"}:
        allowed = (3,)
    elif formats == {"png"}:
        allowed = (1, 3, 4)
    if requested is None:
        return schema.channels if schema.channels in allowed else 3
    for channels in allowed:
        if channels == requested:
            return channels
    raise SpecError(
        f"channels={requested} is not supported for images in {', '.join(sorted(formats))}",
        hint=f"use {' or '.join(map(str, allowed))}",
    )


def label_mode_of(dataset: Dataset, requested: str) -> LabelMode:
    """Return how labels are encoded."""
    allowed: tuple[LabelMode, ...] = ("regression",)
    if dataset.task == "multilabel":
        allowed = ("multihot",)
    if dataset.task == "classification":
        allowed = ("int", "onehot", "binary") if len(dataset.labels) == 2 else ("int", "onehot")
    if requested == "auto":
        return allowed[0]
    for mode in allowed:
        if mode == requested:
            return mode
    raise SpecError(
        f"the label mode {requested!r} does not support {dataset.task} with "
        f"{len(dataset.labels)} labels",
        hint=f"use auto, {', '.join(allowed)}",
    )


def memory_limit(size: str | float) -> int:
    """Return the bytes that ``memory=`` allows."""
    try:
        return parse_bytes(size)
    except SpecError as error:
        raise SpecError(f"memory=: {error.message}") from None
