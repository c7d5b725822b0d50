"""Scaling policies: their fields, defaults and limits.

Names, defaults and limits are those of Knative's autoscaler and of the Horizontal Pod Autoscaler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from timonel.units import Seconds

Algorithm = Literal["kpa", "hpa", "cluster"]
Metric = Literal["concurrency", "rps", "cpu", "memory"]
RESOURCES = ("cpu", "memory")
DEFAULT_TARGETS = {"concurrency": 100.0, "rps": 200.0, "cpu": 80.0, "memory": 80.0}
MIN_TARGET = 0.01
KPA_TICK_S = 2.0
HPA_TICK_S = 15.0
BUCKET_S = 1.0
"""Length of a bucket of a window, and the interval between two measurements."""

Replicas = Annotated[int, Field(ge=0, le=1_000_000)]
UpToAnHour = Annotated[Seconds, Field(ge=0, le=3600)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScalingLimit(_Document):
    """Largest change in the number of replicas within a period."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    type: Literal["Pods", "Percent"] = Field(description="Unit of the value.")
    value: int = Field(gt=0, description="Replicas, or percent of those at the period's start.")
    period_seconds: int = Field(gt=0, le=1800, description="Length of the period.")


class ScalingRules(_Document):
    """Speed of changes in one direction."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    stabilization_window_seconds: int = Field(
        default=0,
        ge=0,
        le=3600,
        description="Time over which the most conservative proposal is used.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        default="Max",
        description="Whether the largest or the smallest limit applies; Disabled: no change.",
    )
    policies: tuple[ScalingLimit, ...] = Field(min_length=1, description="Limits.")


_DOUBLE = ScalingLimit(type="Percent", value=100, period_seconds=15)
_UP = ScalingRules(policies=(ScalingLimit(type="Pods", value=4, period_seconds=15), _DOUBLE))
_DOWN = ScalingRules(stabilization_window_seconds=300, policies=(_DOUBLE,))


class Behavior(_Document):
    """Speed of changes by the HPA algorithm."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    scale_up: ScalingRules = Field(default=_UP, description="Rules for more replicas.")
    scale_down: ScalingRules = Field(default=_DOWN, description="Rules for fewer replicas.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: object) -> object:
        """Complete the rules of each direction with its defaults, as Kubernetes does."""
        if not isinstance(given, dict):
            return given
        filled = {to_camel(key): value for key, value in given.items()}
        for key, default in (("scaleUp", _UP), ("scaleDown", _DOWN)):
            rules = filled.get(key)
            if isinstance(rules, dict):
                stated = {to_camel(name): value for name, value in rules.items()}
                filled[key] = {**default.model_dump(by_alias=True), **stated}
        return filled


class ResourceTarget(_Document):
    """Further metric of the HPA algorithm; the largest number of replicas is used."""

    metric: Literal["cpu", "memory"] = Field(description="Metric.")
    target: float = Field(ge=MIN_TARGET, description="Percent of the requested amount.")


class Forecast(_Document):
    """Predictive mode: start replicas ahead of a load that recurs each period."""

    period_s: Seconds = Field(default=86400.0, ge=3600, description="Length of the pattern.")
    lead_s: Seconds = Field(
        default=120.0, ge=0, le=3600, description="How far ahead replicas are started."
    )


class ScalingPolicy(_Document):
    """Rules for the number of replicas of an endpoint."""

    metric: Metric = Field(default="concurrency", description="Measure of the load.")
    algorithm: Algorithm = Field(
        default="kpa",
        description="kpa for concurrency and rps, hpa for any metric, cluster for a "
        "HorizontalPodAutoscaler of Kubernetes itself.",
    )
    target: float = Field(
        ge=MIN_TARGET,
        default=100.0,
        description="Load of a replica: requests in flight, requests per second, or percent of the "
        "requested CPU or memory.",
    )
    target_unit: Literal["percent", "MiB"] = Field(
        default="percent", description="Unit of a memory target."
    )
    further_metrics: tuple[ResourceTarget, ...] = Field(
        default=(), description="More metrics of the HPA algorithm."
    )
    cluster_metrics: tuple[Mapping[str, Any], ...] = Field(
        default=(),
        description="Metrics of the algorithm cluster, as in a HorizontalPodAutoscaler.",
    )
    utilization_percent: float = Field(
        default=70.0, ge=1, le=100, description="Share of the target at which KPA keeps replicas."
    )
    container_concurrency: int = Field(
        default=0, ge=0, description="Requests that a replica takes at once; 0 for no limit."
    )
    min_replicas: Replicas = Field(default=0, description="Smallest number of replicas.")
    max_replicas: Replicas = Field(default=0, description="Largest number; 0 for no limit.")
    initial_replicas: Replicas = Field(default=1, description="Number of replicas at the start.")
    activation_replicas: Replicas = Field(
        default=1, description="Smallest number of replicas while there is load."
    )
    scale_to_zero: bool = Field(
        default=True, description="Stop the last replica of an idle endpoint."
    )
    window_s: Seconds = Field(
        default=60.0, ge=6, le=3600, description="Time over which the load is averaged."
    )
    panic_window_percent: float = Field(
        default=10.0,
        ge=1,
        le=100,
        description="Length of the panic window, in percent of the window.",
    )
    panic_threshold_percent: float = Field(
        default=200.0,
        ge=110,
        le=1000,
        description="Load that starts panic mode, in percent of capacity.",
    )
    aggregation: Literal["linear", "weighted-exponential"] = Field(
        default="linear", description="Weights of the averages."
    )
    max_scale_up_rate: float = Field(default=1000.0, gt=1, description="Largest growth per step.")
    max_scale_down_rate: float = Field(default=2.0, gt=1, description="Largest decrease per step.")
    scale_down_delay_s: UpToAnHour = Field(
        default=0.0, description="Time for which load must be low before replicas are stopped."
    )
    scale_to_zero_grace_s: UpToAnHour = Field(
        default=30.0,
        description="Time from routing requests to the activator to the last replica's stop.",
    )
    retention_s: Seconds = Field(
        default=0.0, ge=0, description="Shortest time from inactivity to the last replica's stop."
    )
    target_burst_capacity: float = Field(
        default=211.0,
        ge=-1,
        description="Burst to absorb without the activator; -1: always use it.",
    )
    progress_deadline_s: Seconds = Field(
        default=600.0, gt=0, description="Time within which a first replica must become ready."
    )
    tolerance: float = Field(
        default=0.1, ge=0, lt=1, description="Deviation from the target that HPA ignores."
    )
    behavior: Behavior = Field(default=Behavior(), description="Speed of changes by HPA.")
    forecast: Forecast | None = Field(default=None, description="Predictive mode; off by default.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: object) -> object:
        """Choose the default algorithm and target of the metric."""
        if not isinstance(given, dict):
            return given
        metric = given.get("metric", "concurrency")
        defaults: dict[str, object] = {"algorithm": "hpa" if metric in RESOURCES else "kpa"}
        target = DEFAULT_TARGETS.get(metric) if isinstance(metric, str) else None
        limit = given.get("container_concurrency")
        if metric == "concurrency" and isinstance(limit, int) and limit > 0:
            target = limit
        if target is not None and given.get("target_unit") != "MiB":
            defaults["target"] = target
        return {**defaults, **given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.algorithm == "kpa" and self.metric in RESOURCES:
            raise ValueError(f"kpa cannot scale by {self.metric}; use the algorithm hpa")
        if self.algorithm == "kpa" and self.further_metrics:
            raise ValueError("kpa has one metric; use the algorithm hpa for further_metrics")
        if self.algorithm != "kpa" and self.forecast:
            raise ValueError("a forecast needs the algorithm kpa; remove the forecast")
        if self.target_unit == "MiB" and self.metric != "memory":
            raise ValueError("only a memory target has the unit MiB; remove target_unit")
        if self.target_unit == "MiB" and "target" not in self.model_fields_set:
            raise ValueError("a memory target in MiB has no default; set target")
        if 0 < self.max_replicas < max(self.min_replicas, 1):
            raise ValueError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}; "
                "raise max_replicas"
            )
        if 0 < self.max_replicas < self.initial_replicas:
            raise ValueError(
                f"initial_replicas {self.initial_replicas} is above max_replicas "
                f"{self.max_replicas}; raise max_replicas"
            )
        return self

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        if (self.algorithm == "cluster") != bool(self.cluster_metrics):
            raise ValueError("the algorithm cluster and cluster_metrics go together; set both")
        if self.algorithm != "cluster":
            return self
        if self.metric != "concurrency" or self.further_metrics:
            raise ValueError(
                "the algorithm cluster scales by cluster_metrics; remove metric and further_metrics"
            )
        if not (self.min_replicas and self.max_replicas):
            raise ValueError(
                "a HorizontalPodAutoscaler needs at least one replica and a largest number; "
                "set min_replicas and max_replicas"
            )
        return self

    @property
    def goal(self) -> str:
        """What the number of replicas follows, in words."""
        if self.algorithm == "cluster":
            return "by metrics of the cluster"
        return f"{self.target:g} {self.metric} each"

    @property
    def capacity(self) -> float:
        """Load that a replica can take, by the KPA metric."""
        if self.metric == "concurrency" and self.container_concurrency:
            return min(self.target, self.container_concurrency)
        return self.target

    @property
    def load_per_replica(self) -> float:
        """Load per replica that KPA aims at."""
        return max(MIN_TARGET, self.capacity * self.utilization_percent / 100)

    @property
    def panic_window_s(self) -> float:
        """Length of the panic window."""
        # At least two buckets: at a decision, the newest may still be empty.
        return max(2 * BUCKET_S, self.window_s * self.panic_window_percent / 100)

    @property
    def tick_s(self) -> float:
        """Time between two decisions; 0 where each turn follows the cluster."""
        if self.algorithm == "cluster":
            return 0.0
        return KPA_TICK_S if self.algorithm == "kpa" else HPA_TICK_S

    def clamp(self, replicas: int, least: int | None = None) -> int:
        """Return the nearest number within the policy's bounds.

        Args:
            replicas: A number of replicas.
            least: Lower bound instead of `min_replicas`.
        """
        raised = max(replicas, self.min_replicas if least is None else least)
        return min(raised, self.max_replicas) if self.max_replicas else raised
