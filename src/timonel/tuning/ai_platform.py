"""AI Platform's tuning configuration in YAML: ``trainingInput: hyperparameters:``, unchanged.

The models' field descriptions document the keys. Fields of the service's machines are accepted
and listed as ignored; any other key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from timonel.errors import SpecError, did_you_mean
from timonel.storage.yaml_text import TextLoader, yaml_problem
from timonel.tuning.parameters import Parameter, ParameterKind, Scale, Value
from timonel.tuning.space import SearchSpace
from timonel.tuning.tune_options import Algorithm, TuneOptions

DEFAULT_METRIC_TAG = "training/hptuning/metric"
_NOTHING = ("", "~", "null")
_ALGORITHMS: Mapping[str, Algorithm] = {
    "ALGORITHM_UNSPECIFIED": "bayesian",
    "GRID_SEARCH": "grid",
    "RANDOM_SEARCH": "random",
}
_KINDS: Mapping[str, ParameterKind] = {
    "DOUBLE": "double",
    "INTEGER": "integer",
    "CATEGORICAL": "categorical",
    "DISCRETE": "discrete",
}
_SCALES: Mapping[str, Scale] = {
    "NONE": "linear",
    "UNIT_LINEAR_SCALE": "linear",
    "UNIT_LOG_SCALE": "log",
    "UNIT_REVERSE_LOG_SCALE": "reverse-log",
}
_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "int_from_float": "a whole number",
    "model_type": "a mapping with keys",
    "string_type": "a text",
    "tuple_type": "a list",
}


@dataclass(frozen=True)
class TuningConfig:
    """Content of a tuning configuration.

    Attributes:
        space: Parameters; those with a single value are fixed values.
        metric_tag: TensorBoard tag of the objective.
        options: Options of `timonel.tune` that the file sets.
        resume_job_id: Job whose study is continued.
        python_module: Module that the trials run.
        args: Arguments of the script.
        ignored: Keys that have no effect here, such as ``trainingInput.scaleTier``.
    """

    space: SearchSpace
    metric_tag: str
    options: TuneOptions
    resume_job_id: str | None = None
    python_module: str | None = None
    args: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_config(path: Path) -> TuningConfig:
    """Read a configuration file; see `parse_config`."""
    try:
        return parse_config(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error


def parse_config(text: str) -> TuningConfig:
    """Parse a job's YAML (or JSON), or the ``hyperparameters`` of one."""
    document = _load(text)
    try:
        job = JobConfig.model_validate(document)
    except ValidationError as error:
        raise _explained(error) from None
    training = job.training_input or TrainingInput()
    if job.hyperparameters and training.hyperparameters:
        raise SpecError("the configuration has 'hyperparameters' twice", hint="remove one of them")
    tuning = job.hyperparameters or training.hyperparameters
    if tuning is None:
        raise SpecError(
            "the configuration has no 'hyperparameters'",
            hint="write them under 'trainingInput', or at the top",
        )
    options: TuneOptions = {
        "goal": "minimize" if tuning.goal == "MINIMIZE" else "maximize",
        "trials": tuning.max_trials,
        "parallel": tuning.max_parallel_trials,
        "algorithm": _ALGORITHMS[tuning.algorithm],
        "stopping_rule": "median" if tuning.enable_trial_early_stopping else "none",
        "max_failed": tuning.max_failed_trials or None,
        "study": job.job_id,
    }
    if training.job_dir is not None:
        options["pass_job_dir"] = True
    return TuningConfig(
        space=_space(tuning.params),
        metric_tag=tuning.hyperparameter_metric_tag,
        options=options,
        resume_job_id=tuning.resume_previous_job_id,
        python_module=training.python_module,
        args=training.args,
        ignored=_ignored(document),
    )


def _number(value: object) -> int | float:
    try:
        return int(str(value))
    except ValueError:
        pass
    try:
        return float(str(value))
    except ValueError:
        raise ValueError("expected a number") from None


Number = Annotated[int | float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
_ROLES = ("master", "worker", "parameterServer", "evaluator")


class _Keys(BaseModel):
    """Keys in camel case; unknown ones are refused with the nearest known key."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)
    unused: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()} | cls.unused
        for key in given:
            if key not in known:
                hint = did_you_mean(str(key), known) or f"use {', '.join(sorted(known))}"
                raise ValueError(f"unknown key '{key}'; {hint}")
        return {key: value for key, value in given.items() if value not in _NOTHING}


class ParameterSpec(_Keys):
    """Parameter of the search space."""

    parameter_name: str = Field(description="Name; each trial gets the flag --name=value.")
    type: Literal["DOUBLE", "INTEGER", "CATEGORICAL", "DISCRETE"] = Field(
        description="Type of the values."
    )
    min_value: Number | None = Field(
        default=None, description="Smallest value of a DOUBLE or an INTEGER."
    )
    max_value: Number | None = Field(
        default=None, description="Largest value of a DOUBLE or an INTEGER."
    )
    categorical_values: tuple[str, ...] = Field(
        default=(), description="Choices of a CATEGORICAL parameter."
    )
    discrete_values: tuple[Number, ...] = Field(
        default=(), description="Increasing values of a DISCRETE parameter, at most 1000."
    )
    scale_type: Literal["NONE", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"] = (
        Field(default="NONE", description="Scale; CATEGORICAL parameters have none.")
    )


class Hyperparameters(_Keys):
    """Study: its search space, objective and limits."""

    goal: Literal["GOAL_TYPE_UNSPECIFIED", "MAXIMIZE", "MINIMIZE"] = Field(
        default="MAXIMIZE", description="Direction of the objective."
    )
    params: tuple[ParameterSpec, ...] = Field(description="Parameters to search.")
    hyperparameter_metric_tag: str = Field(
        default=DEFAULT_METRIC_TAG, description="TensorBoard scalar tag of the objective."
    )
    max_trials: Count = Field(default=1, description="Number of trials.")
    max_parallel_trials: Count = Field(
        default=1, description="Number of trials that run at the same time."
    )
    max_failed_trials: Annotated[int, BeforeValidator(_number), Field(ge=0)] = Field(
        default=0, description="Failed trials that end the study; 0 for the default."
    )
    enable_trial_early_stopping: bool = Field(
        default=False, description="Stop unpromising trials early."
    )
    algorithm: Literal["ALGORITHM_UNSPECIFIED", "GRID_SEARCH", "RANDOM_SEARCH"] = Field(
        default="ALGORITHM_UNSPECIFIED", description="Algorithm; Bayesian if unspecified."
    )
    resume_previous_job_id: str | None = Field(
        default=None, description="Job whose study is continued."
    )


class TrainingInput(_Keys):
    """Program of the trials; keys of the service's machines are ignored."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {f"{role}{part}" for role in _ROLES for part in ("Type", "Config")}
        | {f"{role}Count" for role in _ROLES[1:]}
        | {
            *("scaleTier", "packageUris", "region", "runtimeVersion", "pythonVersion"),
            *("useChiefInTfConfig", "scheduling", "serviceAccount", "network"),
            *("encryptionConfig", "enableWebAccess"),
        }
    )

    hyperparameters: Hyperparameters | None = Field(default=None, description="The study.")
    python_module: str | None = Field(default=None, description="Module that the trials run.")
    args: tuple[str, ...] = Field(default=(), description="Arguments of the script.")
    job_dir: str | None = Field(
        default=None, description="If set, each trial gets --job-dir with its own folder."
    )


class JobConfig(_Keys):
    """A tuning job."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {"labels", "etag", "createTime", "startTime", "endTime", "state", "errorMessage"}
        | {"trainingOutput", "jobPosition"}
    )

    job_id: str | None = Field(default=None, description="Name of the study.")
    training_input: TrainingInput | None = Field(
        default=None, description="Program and study of the trials."
    )
    hyperparameters: Hyperparameters | None = Field(
        default=None, description="The study, if the file has no `trainingInput`."
    )


def _load(text: str) -> Any:
    try:
        # Each field knows its type: TextLoader returns all scalars as texts. Other loaders read
        # the choices yes and no as bools, and 1e-4 as a text.
        return yaml.load(text, Loader=TextLoader)  # noqa: S506 - it creates texts only
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"the configuration is not valid YAML{yaml_problem(error)}") from error


def _space(specs: tuple[ParameterSpec, ...]) -> SearchSpace:
    parameters: list[Parameter] = []
    fixed: dict[str, Value] = {}
    for spec in specs:
        name = spec.parameter_name
        only = _single_value(spec)
        if name in fixed:
            raise SpecError(f"the parameter '{name}' is repeated", hint="remove one of them")
        if only is None:
            parameters.append(_parameter(spec))
        else:
            fixed[name] = only
    return SearchSpace(tuple(parameters), fixed)


def _parameter(spec: ParameterSpec) -> Parameter:
    if spec.categorical_values and spec.type != "CATEGORICAL":
        raise SpecError(
            f"parameter '{spec.parameter_name}': categoricalValues are for the type CATEGORICAL"
        )
    if spec.discrete_values and spec.type != "DISCRETE":
        raise SpecError(
            f"parameter '{spec.parameter_name}': discreteValues are for the type DISCRETE"
        )
    return Parameter(
        spec.parameter_name,
        _KINDS[spec.type],
        spec.min_value,
        spec.max_value,
        spec.categorical_values or spec.discrete_values,
        _SCALES[spec.scale_type],
    )


def _single_value(spec: ParameterSpec) -> Value | None:
    """Return the value of a parameter that can have only one: it is not searched."""
    low = spec.min_value
    if spec.type in {"DOUBLE", "INTEGER"}:
        if low is None or low != spec.max_value:
            return None
        return int(low) if spec.type == "INTEGER" and float(low).is_integer() else low
    values = spec.categorical_values if spec.type == "CATEGORICAL" else spec.discrete_values
    return values[0] if len(values) == 1 else None


def _ignored(document: Mapping[str, Any]) -> tuple[str, ...]:
    training = document.get("trainingInput") or {}
    return (
        *(key for key in document if key in JobConfig.unused),
        *(f"trainingInput.{key}" for key in training if key in TrainingInput.unused),
    )


def _explained(error: ValidationError) -> SpecError:
    first = error.errors()[0]
    place = ""
    for part in first["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    place = place.removeprefix(".") or "the configuration"
    kind, context = first["type"], first.get("ctx", {})
    if kind == "missing":
        return SpecError(f"{place} is missing")
    problem = str(context["error"]) if kind == "value_error" else ""
    if problem.startswith("unknown"):
        problem, _, hint = problem.rpartition("; ")
        return SpecError(f"{place}: {problem}", hint=hint)
    if kind == "literal_error":
        expected = context["expected"]
    elif kind == "greater_than_equal":
        expected = f"at least {context['ge']}"
    else:
        expected = problem.removeprefix("expected ") or _EXPECTED.get(kind, first["msg"])
    return SpecError(f"{place}: expected {expected}, got {first['input']!r}")
