"""What a model's default signature wants of a client, read from its metadata. Pure."""

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
    """What one instance is made of."""

    IMAGE = "an encoded image"
    ROW = "a row of named values"
    TENSOR = "a tensor"


@dataclass(frozen=True)
class Input:
    """An input of the signature; sizes of its shape are -1 where open, none if the rank is."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def instance_shape(self) -> tuple[int, ...]:
        """The shape without the batch."""
        return self.shape[1:] if self.shape else ()

    def __str__(self) -> str:
        sizes = ["?" if size < 0 else str(size) for size in self.shape or ()]
        return f"{self.name} ({display_name(self.dtype)} [{', '.join(sizes)}])"


@dataclass(frozen=True)
class ClientSignature:
    """A version's default signature, as a client sees it."""

    model: str
    version: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """What one instance is made of."""
        if len(self.inputs) > 1:
            return Kind.ROW
        only = self.inputs[0]
        if is_image(only.name, only.dtype):
            return Kind.IMAGE
        return Kind.TENSOR if only.shape is None or len(only.shape) > 1 else Kind.ROW

    @property
    def description(self) -> str:
        """The inputs in words."""
        return ", ".join(map(str, self.inputs))


def is_image(name: str, dtype: str) -> bool:
    """Whether an input takes encoded images, as far as its name tells."""
    return dtype == STRING and any(part in name for part in _IMAGE_NAMES)


def wanted_from(metadata: Mapping[str, Any]) -> ClientSignature:
    """Return what the answer to ``GET /v1/models/<name>/metadata`` says.

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
