"""A model's default signature, as clients read it from the metadata. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from timonel.errors import ServingError
from timonel.serving.protocols.tfs_rest.tensors import display_name
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING

_IMAGE_NAMES = ("_bytes", "image")


class Kind(Enum):
    """Kind of instance that a model expects."""

    IMAGE = "an encoded image"
    ROW = "a row of named values"
    TENSOR = "a tensor"


@dataclass(frozen=True)
class Input:
    """An input of a signature.

    Unknown sizes of the shape are -1; the shape is None for an unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def instance_shape(self) -> tuple[int, ...]:
        """The shape without the batch dimension."""
        return self.shape[1:] if self.shape else ()

    def __str__(self) -> str:
        sizes = ["?" if size < 0 else str(size) for size in self.shape or ()]
        return f"{self.name} ({display_name(self.dtype)} [{', '.join(sizes)}])"


@dataclass(frozen=True)
class ClientSignature:
    """Default signature of a version."""

    model: str
    version: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Kind of instance that the model expects."""
        if len(self.inputs) > 1:
            return Kind.ROW
        only = self.inputs[0]
        if is_image(only.name, only.dtype):
            return Kind.IMAGE
        return Kind.TENSOR if only.shape is None or len(only.shape) > 1 else Kind.ROW

    @property
    def description(self) -> str:
        """The inputs as text, for messages."""
        return ", ".join(map(str, self.inputs))


def is_image(name: str, dtype: str) -> bool:
    """Guess by dtype and name whether an input takes encoded images."""
    return dtype == STRING and any(part in name for part in _IMAGE_NAMES)


def wanted_from(metadata: Mapping[str, Any]) -> ClientSignature:
    """Parse the response to ``GET /v1/models/<name>/metadata``.

    Raises:
        ServingError: The model has no default signature with inputs.
    """
    spec = metadata["model_spec"]
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    default = signatures.get(DEFAULT_SIGNATURE, {})
    if not default.get("inputs"):
        raise ServingError(
            f"expected {spec['name']} to have the signature {DEFAULT_SIGNATURE}, "
            f"it has {', '.join(sorted(signatures)) or 'none'}",
            hint="ask the server with a client of your own, and name the signature",
        )
    return ClientSignature(
        model=spec["name"],
        version=int(spec["version"]),
        inputs=tuple(_input(name, info) for name, info in sorted(default["inputs"].items())),
        outputs=tuple(sorted(default["outputs"])),
    )


def _input(name: str, info: Mapping[str, Any]) -> Input:
    shape = info["tensor_shape"]
    sizes = None if shape["unknown_rank"] else tuple(int(dim["size"]) for dim in shape["dim"])
    return Input(name, info["dtype"], sizes)
