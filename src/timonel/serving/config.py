"""A server's settings: frozen, built at the entry point, handed down, sent to the child as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timonel.units import Seconds


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Latest(_Settings):
    """Serve the newest versions."""

    kind: Literal["latest"] = "latest"
    count: int = Field(default=1, ge=1, description="How many of the newest versions.")


class Every(_Settings):
    """Serve every version that is there."""

    kind: Literal["every"] = "every"


class Specific(_Settings):
    """Serve the named versions, whatever else is there."""

    kind: Literal["specific"] = "specific"
    versions: tuple[int, ...] = Field(description="The versions to serve.")


VersionPolicy = Annotated[Latest | Every | Specific, Field(discriminator="kind")]


class ModelSettings(_Settings):
    """One model that a server serves."""

    name: str = Field(min_length=1, description="The name clients ask for.")
    base_path: str = Field(description="The folder that holds the numbered versions.")
    policy: VersionPolicy = Field(default=Latest(), description="Which versions are served.")
    labels: Mapping[str, int] = Field(
        default_factory=dict, description="Names for versions, such as 'stable'."
    )


class LoadSettings(_Settings):
    """How versions are found and loaded."""

    poll_s: Seconds = Field(default=1.0, description="Time between two looks at the disk.")
    settle_s: Seconds = Field(
        default=1.0,
        description="How long a version that timonel did not publish must stay unchanged.",
    )
    threads: int = Field(default=2, ge=1, description="Versions that load at the same time.")
    max_retries: int = Field(
        default=5, ge=0, description="Further attempts after a failure that may pass by itself."
    )
    retry_s: Seconds = Field(default=5.0, description="Time between two attempts.")


class RuntimeSettings(_Settings):
    """How models compute."""

    name: str = Field(default="tensorflow", description="The runtime's entry-point name.")
    tags: tuple[str, ...] = Field(default=("serve",), description="Tags of the graph to load.")
    intra_op_threads: int = Field(
        default=0, ge=0, description="Threads within an operation; 0 lets TensorFlow choose."
    )
    inter_op_threads: int = Field(
        default=0, ge=0, description="Operations at the same time; 0 lets TensorFlow choose."
    )


class ServerSettings(_Settings):
    """Everything a server process needs to know."""

    models: tuple[ModelSettings, ...] = Field(min_length=1, description="What is served.")
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    rest_port: int = Field(default=8501, ge=0, le=65535, description="REST port; 0 picks one.")
    grpc_port: int | None = Field(
        default=8500, ge=0, le=65535, description="gRPC port; 0 picks one, none turns it off."
    )
    compute_threads: int = Field(
        default=2, ge=1, description="Requests that are decoded and computed at the same time."
    )
    drain_s: Seconds = Field(
        default=30.0, description="Time that requests in flight have after a stop signal."
    )
    load: LoadSettings = Field(default_factory=LoadSettings, description="Loading.")
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings, description="Computing.")
    servers_folder: str | None = Field(
        default=None, description="Where the running server's document is written."
    )

    @field_validator("models")
    @classmethod
    def _names_are_distinct(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [model.name for model in models]
        if len(set(names)) != len(names):
            raise ValueError(f"expected each model once, got {names}")
        return models
