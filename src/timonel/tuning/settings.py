"""Settings of a study, as stored in ``study.json``."""

from __future__ import annotations

from typing import Any

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from timonel.engines import DEFAULT_ENGINE
from timonel.tuning.limits import StudyLimits
from timonel.tuning.objectives import Objective, Threshold
from timonel.tuning.space import SearchSpace


class StudySettings(BaseModel):
    """Settings of a study; only its number of trials and the digests ever change."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(default="", description="Unique ID, which names the journal in a bucket.")
    name: str = Field(description="Name of the study.")
    created_at: float = Field(description="Start time, in Unix seconds.")
    entry: str = Field(description="Script, notebook, module or function of the trials.")
    function: Base64Bytes | None = Field(
        default=None, description="The function, pickled; of a program that is one."
    )
    working_dir: str = Field(description="Folder in which the study was started.")
    data: str | dict[str, str] | None = Field(default=None, description="Dataset of the trials.")
    args: tuple[str, ...] = Field(default=(), description="Further arguments of the script.")
    engine: str = Field(default=DEFAULT_ENGINE, description="Engine of the jobs.")
    space: dict[str, Any] = Field(description="Search space.")
    objectives: tuple[Objective, ...] = Field(description="Metrics to optimize.")
    options: dict[str, Any] = Field(description="All `TuneOptions`.")
    digests: dict[str, str] = Field(
        default_factory=dict, description="Digests of the script and the datasets."
    )

    @property
    def trials(self) -> int:
        """Number of trials."""
        return int(self.options["trials"])

    @property
    def limits(self) -> StudyLimits:
        """Limits that end the study."""
        return StudyLimits(
            trials=self.trials,
            max_seconds=self.options["max_seconds"],
            trials_without_progress=self.options["patience"],
            max_failed=self.options["max_failed"],
        )

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """Bounds of metrics that feasible trials keep."""
        return tuple(map(Threshold.parse, self.options["thresholds"]))

    @property
    def search_space(self) -> SearchSpace:
        """The search space."""
        return SearchSpace.from_json(self.space)
