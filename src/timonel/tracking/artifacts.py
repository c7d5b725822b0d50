"""Artifacts: inputs and outputs of runs, identified by content digest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timonel.storage import normalise
from timonel.tracking.redaction import redact_text, redact_value

ArtifactType = Literal["files", "dataset", "source", "savedmodel", "model", "checkpoint", "report"]
ARTIFACT_TYPES: tuple[str, ...] = get_args(ArtifactType)


class Artifact(BaseModel):
    """An input or output of a run.

    Artifacts with equal digests are the same, regardless of location. Immutable. Credentials in the
    URI or the metadata are redacted on creation, so that no record can contain them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: ArtifactType = Field(description="What it is.")
    uri: str = Field(description="Where it was when the run saw it: a path or a URI.")
    digest: str | None = Field(default=None, description="The digest of its content, if known.")
    name: str | None = Field(default=None, description="What people call it.")
    metadata: Mapping[str, Any] = Field(default_factory=dict, description="More about it, as JSON.")

    def __init__(  # - positional arguments, which pydantic does not take by itself
        self,
        type: ArtifactType,  # noqa: A002 - the field's name in every record
        uri: str | os.PathLike[str],
        digest: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **ignored: Any,
    ) -> None:
        super().__init__(
            type=type, uri=uri, digest=digest, name=name, metadata=dict(metadata or {}), **ignored
        )

    @field_validator("uri", mode="before")
    @classmethod
    def _one_spelling(cls, uri: str | os.PathLike[str]) -> str:
        return redact_text(normalise(uri))

    @field_validator("metadata")
    @classmethod
    def _without_secrets(cls, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        redacted: Mapping[str, Any] = redact_value(metadata)
        return redacted

    @property
    def label(self) -> str:
        """Name, or the last part of the URI."""
        return self.name or self.uri.rstrip("/").rpartition("/")[2] or self.uri

    @property
    def short_digest(self) -> str:
        """First 12 digits of the digest; empty without a digest."""
        return self.digest.rpartition(":")[2][:12] if self.digest else ""
