"""Options of `timonel.edge.convert_version` and ``timonel models convert``."""

from __future__ import annotations

from typing import Annotated, TypedDict

from timonel.edge.report import Quantization, Target
from timonel.models.safety.trust_options import TrustOptions
from timonel.options import Option

MODEL = "The converted model"
EXAMPLES = "Calibration and comparison"


class ExampleOptions(TypedDict, total=False):
    """Options that name the examples of a conversion."""

    data: Annotated[
        str | None,
        Option(
            None,
            "Converted dataset for calibration and comparison.",
            EXAMPLES,
            computed="the dataset of the training",
            metavar="FOLDER",
        ),
    ]
    samples: Annotated[
        str | None,
        Option(
            None,
            "An .npz file of inputs instead, with an array for each.",
            EXAMPLES,
            metavar="FILE",
        ),
    ]


class ModelOptions(TypedDict, total=False):
    """Options of the converted model."""

    format: Annotated[
        Target,
        Option("litert", "Format: LiteRT for phones, TensorFlow.js for browsers.", MODEL),
    ]
    quantize: Annotated[
        Quantization,
        Option(
            "none",
            "Type of the weights; int8 and int16x8 also compute with integers. These two need "
            "examples.",
            MODEL,
        ),
    ]
    integer_io: Annotated[
        bool,
        Option(
            False, "Make inputs and outputs integers as well, for devices without floats.", MODEL
        ),
    ]
    page: Annotated[
        bool, Option(False, "Write a page that classifies images in the browser.", MODEL)
    ]
    c_header: Annotated[
        bool,
        Option(
            False,
            "Write the model as a C array for microcontrollers as well. With the package "
            "tflite-micro, it has the size of the tensor arena.",
            MODEL,
        ),
    ]
    max_accuracy_drop: Annotated[
        str | None,
        Option(
            None,
            "Keep layers of an int8 model in float until it loses at most this, such as 0.5%.",
            MODEL,
            metavar="SHARE",
        ),
    ]
    output: Annotated[
        str | None,
        Option(
            None,
            "Folder for the files.",
            MODEL,
            computed="NAME-VERSION-FORMAT here",
            metavar="FOLDER",
        ),
    ]
    overwrite: Annotated[bool, Option(False, "Replace the folder if it exists.", MODEL)]


class BenchOptions(ExampleOptions, TrustOptions, total=False):
    """Options of a comparison of formats."""


class ModelConvertOptions(ModelOptions, ExampleOptions, TrustOptions, total=False):
    """Options of a conversion."""
