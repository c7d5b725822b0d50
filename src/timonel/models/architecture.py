"""Architecture of an exported Keras model: its layers, and which variables are their weights.

A SavedModel holds a graph and variables, but no layers, which further training needs. The file is
beside the SavedModel in the export folder of a job; versions do not have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from timonel.errors import ModelError, NotFoundError
from timonel.models.schema import StoredDocument
from timonel.storage import write_document

ARCHITECTURE_FILE = "architecture.json"
_KIND = "architecture"


class Architecture(StoredDocument):
    """Layers of a Keras model."""

    keras: str = Field(description="Keras package of the configuration: keras or tf_keras.")
    config: Mapping[str, Any] = Field(description="The model's configuration, as of to_json().")
    weights: Mapping[str, tuple[int, ...]] = Field(
        description="Indices of a layer's weights among the SavedModel's variables; -1 if unused."
    )


def write_architecture(folder: Path, model: Any, keras: str, variables: Sequence[Any]) -> None:
    """Write the architecture of a model into its export folder.

    Nothing is written for models without one: subclassed models, and models with custom layers that
    cannot be described as JSON.

    Args:
        variables: Variables of the SavedModel, in order.
    """
    try:
        config = json.loads(model.to_json())
        if keras == "tf_keras":  # Keras 3 has it in its JSON
            config["compile_config"] = json.loads(json.dumps(model.get_compile_config()))
    except Exception:  # noqa: BLE001 - get_config and serialization run code of custom layers
        return
    if not isinstance(config.get("config"), dict) or "layers" not in config["config"]:
        return
    indices = {id(variable): index for index, variable in enumerate(variables)}
    weights = {
        layer.name: tuple(indices.get(id(_value(each)), -1) for each in layer.weights)
        for layer in _leaf_layers(model)
    }
    document = Architecture(keras=keras, config=config, weights=weights)
    write_document(folder / ARCHITECTURE_FILE, _KIND, document.model_dump(mode="json"))


def read_architecture(folder: Path) -> Architecture:
    """Read the architecture in an export folder."""
    try:
        return Architecture.read(folder / ARCHITECTURE_FILE, _KIND)
    except NotFoundError as error:
        raise ModelError(
            "the layers of the model are unknown, so they cannot be trained again",
            hint="build it with keras.Sequential or keras.Model(inputs, outputs) and layers of "
            "Keras, and train again",
        ) from error


def _leaf_layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if hasattr(layer, "layers") and hasattr(layer, "to_json"):
            yield from _leaf_layers(layer)
        else:
            yield layer


def _value(weight: Any) -> Any:
    # Keras 3 wraps TensorFlow's variables.
    return weight.value if hasattr(weight, "path") else weight
