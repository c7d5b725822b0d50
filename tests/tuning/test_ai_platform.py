from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.tuning.ai_platform import TuningConfig, parse_config
from timonel.tuning.space import Parameter, SearchSpace

JOB = """
jobId: digits_1
labels: {team: vision}
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerType: complex_model_m
  parameterServerType: large_model
  workerCount: 9
  parameterServerCount: 3
  masterConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
  packageUris: [gs://bucket/trainer-0.1.tar.gz]
  pythonModule: trainer.task
  args:
  - --train-files
  - gs://bucket/train.csv
  - --steps
  - 010
  - 1e-4
  region: us-central1
  jobDir: gs://bucket/jobs
  runtimeVersion: '2.11'
  pythonVersion: '3.7'
  scheduling: {maxRunningTime: 7200s}
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: epoch_val_loss
    maxTrials: 70
    maxParallelTrials: 7
    maxFailedTrials: 5
    enableTrialEarlyStopping: True
    algorithm: RANDOM_SEARCH
    resumePreviousJobId: digits_0
    params:
    - parameterName: hidden1
      type: INTEGER
      minValue: 40
      maxValue: 400
      scaleType: UNIT_LINEAR_SCALE
    - parameterName: rnnCellType
      type: CATEGORICAL
      categoricalValues:
      - BasicLSTMCell
      - yes
      - 010
    - parameterName: learning-rate
      type: DOUBLE
      minValue: 1e-4
      maxValue: 0.5
      scaleType: UNIT_LOG_SCALE
    - parameterName: momentum
      type: DOUBLE
      minValue: 0.9
      maxValue: 0.999
      scaleType: UNIT_REVERSE_LOG_SCALE
    - parameterName: batch
      type: DISCRETE
      discreteValues: [16, 32, 64.5]
      scaleType: NONE
"""
SPACE = SearchSpace(
    (
        Parameter("hidden1", "integer", 40, 400),
        Parameter("rnnCellType", "categorical", values=("BasicLSTMCell", "yes", "010")),
        Parameter("learning-rate", "double", 1e-4, 0.5, scale="log"),
        Parameter("momentum", "double", 0.9, 0.999, scale="reverse-log"),
        Parameter("batch", "discrete", values=(16, 32, 64.5)),
    )
)
PARAMS = """
hyperparameters:
  params:
  - parameterName: x
    type: DOUBLE
    minValue: 0
    maxValue: 1
"""


def with_params(*lines: str, name: str = "x") -> str:
    indented = "".join(f"\n    {line}" for line in lines)
    return f"hyperparameters:\n  params:\n  - parameterName: {name}{indented}\n"


def problem_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_config(text)
    return str(caught.value)


def test_a_job() -> None:
    assert parse_config(JOB) == TuningConfig(
        space=SPACE,
        metric_tag="epoch_val_loss",
        options={
            "goal": "minimize",
            "trials": 70,
            "parallel": 7,
            "max_failed": 5,
            "stopping_rule": "median",
            "algorithm": "random",
            "study": "digits_1",
            "pass_job_dir": True,
        },
        resume_job_id="digits_0",
        python_module="trainer.task",
        args=("--train-files", "gs://bucket/train.csv", "--steps", "010", "1e-4"),
        ignored=(
            "labels",
            "trainingInput.scaleTier",
            "trainingInput.masterType",
            "trainingInput.workerType",
            "trainingInput.parameterServerType",
            "trainingInput.workerCount",
            "trainingInput.parameterServerCount",
            "trainingInput.masterConfig",
            "trainingInput.packageUris",
            "trainingInput.region",
            "trainingInput.runtimeVersion",
            "trainingInput.pythonVersion",
            "trainingInput.scheduling",
        ),
    )


def test_defaults() -> None:
    found = parse_config(PARAMS)
    assert found == TuningConfig(
        space=SearchSpace((Parameter("x", "double", 0, 1),)),
        metric_tag="training/hptuning/metric",
        options={
            "goal": "maximize",
            "trials": 1,
            "parallel": 1,
            "max_failed": None,
            "stopping_rule": "none",
            "algorithm": "bayesian",
            "study": None,
        },
    )


def test_unspecified_and_empty_values_are_defaults() -> None:
    text = PARAMS + "  goal: GOAL_TYPE_UNSPECIFIED\n  algorithm: ALGORITHM_UNSPECIFIED\n"
    text += "  maxFailedTrials: 0\n  resumePreviousJobId:\n  maxTrials: null\n"
    assert parse_config(text + "trainingInput:\n") == parse_config(PARAMS)


def test_grid_search() -> None:
    assert parse_config(PARAMS + "  algorithm: GRID_SEARCH\n").options["algorithm"] == "grid"


def test_json_is_yaml() -> None:
    document = {
        "trainingInput": {
            "hyperparameters": {
                "maxTrials": "3",
                "enableTrialEarlyStopping": False,
                "params": [
                    {"parameterName": "x", "type": "DOUBLE", "minValue": 1e-5, "maxValue": 1}
                ],
            }
        }
    }
    found = parse_config(orjson.dumps(document).decode())
    assert found.options["trials"] == 3
    assert found.space.parameters == (Parameter("x", "double", 1e-5, 1),)


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (("type: DOUBLE", "minValue: 0.5", "maxValue: 0.5"), 0.5),
        (("type: INTEGER", "minValue: 3", "maxValue: 3.0"), 3),
        (("type: INTEGER", "minValue: 3.0", "maxValue: 3"), 3),
        (("type: CATEGORICAL", "categoricalValues: [relu]"), "relu"),
        (("type: DISCRETE", "discreteValues: [16]"), 16),
    ],
)
def test_parameters_with_one_value_are_fixed(lines: tuple[str, ...], value: object) -> None:
    text = PARAMS + "  - parameterName: only\n" + "".join(f"    {line}\n" for line in lines)
    found = parse_config(text).space.fixed["only"]
    assert found == value
    assert type(found) is type(value)


def test_a_space_of_fixed_values_is_empty() -> None:
    assert "the search space is empty" in problem_of(
        with_params("type: DISCRETE", "discreteValues: [16]")
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "trainingImput: {}",
            "the configuration: unknown key 'trainingImput': did you mean 'trainingInput'?",
        ),
        ("predictions: {}", "the configuration: unknown key 'predictions': use createTime, "),
        (
            "trainingInput: {scaletier: BASIC}",
            "trainingInput: unknown key 'scaletier': did you mean 'scaleTier'?",
        ),
        (
            "trainingInput: {hyperparameter: {}}",
            "trainingInput: unknown key 'hyperparameter': did you mean 'hyperparameters'?",
        ),
        (
            PARAMS + "  max_trials: 3",
            "hyperparameters: unknown key 'max_trials': did you mean 'maxTrials'?",
        ),
        (
            with_params("type: DOUBLE", "minVlaue: 3"),
            "hyperparameters.params[0]: unknown key 'minVlaue': did you mean 'minValue'?",
        ),
        (PARAMS + "  goal: MAX", "hyperparameters.goal: expected 'GOAL_TYPE_UNSPECIFIED', "),
        (PARAMS + "  maxTrials: 0", "hyperparameters.maxTrials: expected at least 1, got '0'"),
        (PARAMS + "  maxTrials: many", "hyperparameters.maxTrials: expected a number, got 'many'"),
        (PARAMS + "  maxTrials: 2.5", "maxTrials: expected a whole number, got 2.5"),
        (PARAMS + "  maxParallelTrials: [3]", "maxParallelTrials: expected a number, got ['3']"),
        (PARAMS + "  maxFailedTrials: -1", "maxFailedTrials: expected at least 0, got '-1'"),
        (
            PARAMS + "  enableTrialEarlyStopping: maybe",
            "enableTrialEarlyStopping: expected true or false, got 'maybe'",
        ),
        (PARAMS + "  resumePreviousJobId: [a]", "resumePreviousJobId: expected a text, got ['a']"),
        ("hyperparameters: {params: 3}", "hyperparameters.params: expected a list, got '3'"),
        ("hyperparameters: {params: [3]}", "params[0]: expected a mapping with keys, got '3'"),
        ("hyperparameters: {goal: MAXIMIZE}", "hyperparameters.params is missing"),
        ("hyperparameters: {params: [{type: DOUBLE}]}", "params[0].parameterName is missing"),
        (with_params(), "hyperparameters.params[0].type is missing"),
        (with_params("type: FLOAT"), "hyperparameters.params[0].type: expected 'DOUBLE', "),
        (with_params("type: DOUBLE", "minValue: low"), "minValue: expected a number, got 'low'"),
        (with_params("type: DOUBLE", "scaleType: LOG"), "scaleType: expected 'NONE', "),
        ("hyperparameters: 3", "hyperparameters: expected a mapping with keys, got '3'"),
        ("trainingInput: {args: --steps 3}", "args: expected a list, got '--steps 3'"),
        ("trainingInput: {args: [[a]]}", "trainingInput.args[0]: expected a text, got ['a']"),
        ("", "the configuration: expected a mapping with keys, got None"),
        ("- a", "the configuration: expected a mapping with keys, got ['a']"),
        ("jobId: a", "the configuration has no 'hyperparameters'"),
        ("trainingInput: {scaleTier: BASIC}", "the configuration has no 'hyperparameters'"),
        (
            PARAMS + "trainingInput: {hyperparameters: {params: []}}",
            "the configuration has 'hyperparameters' twice",
        ),
        ("hyperparameters: {params: []}", "the search space is empty"),
    ],
)
def test_wrong_keys_and_values(text: str, problem: str) -> None:
    assert problem in problem_of(text)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("type: DOUBLE", "minValue: 0"), "parameter 'x': it has no maximum"),
        (("type: INTEGER", "maxValue: 0"), "parameter 'x': it has no minimum"),
        (("type: DOUBLE", "minValue: 1", "maxValue: 0"), "the minimum 1.0 is above the maximum"),
        (("type: INTEGER", "minValue: 0.5", "maxValue: 3"), "must be whole, got 0.5"),
        (("type: DOUBLE", "minValue: 0", "maxValue: inf"), "must be a finite number, got inf"),
        (("type: CATEGORICAL",), "it has no values"),
        (("type: DISCRETE",), "it has no values"),
        (("type: DISCRETE", "discreteValues: [1, 3, 2]"), "must increase, got 3 before 2"),
        (
            ("type: DISCRETE", f"discreteValues: {list(range(1001))}"),
            "1001 discrete values exceed the limit of 1000",
        ),
        (("type: CATEGORICAL", "categoricalValues: [a, a]"), "a choice is repeated"),
        (
            ("type: DISCRETE", "categoricalValues: [a, b]"),
            "categoricalValues are for the type CATEGORICAL",
        ),
        (
            ("type: CATEGORICAL", "discreteValues: [1, 2]"),
            "discreteValues are for the type DISCRETE",
        ),
        (
            ("type: CATEGORICAL", "categoricalValues: [a, b]", "minValue: 0"),
            "values instead of bounds",
        ),
        (
            ("type: CATEGORICAL", "categoricalValues: [a, b]", "scaleType: UNIT_LOG_SCALE"),
            "a categorical parameter has no scale",
        ),
        (
            ("type: DOUBLE", "minValue: 0", "maxValue: 1", "scaleType: UNIT_LOG_SCALE"),
            "the log scale needs a positive minimum, got 0",
        ),
    ],
)
def test_invalid_parameters(lines: tuple[str, ...], problem: str) -> None:
    assert problem in problem_of(with_params(*lines))


@pytest.mark.parametrize("same", ["[16]", "[16, 32]"])
def test_repeated_names(same: str) -> None:
    item = f"  - parameterName: a\n    type: DISCRETE\n    discreteValues: {same}\n"
    assert "the parameter 'a' is repeated" in problem_of(PARAMS + item + item)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {b: [", "is not valid YAML (line 1, column 9): expected the node content"),
        ("a: b: c", "is not valid YAML (line 1, column 5)"),
        ("a: *b", "undefined alias 'b'"),
        ("a: 1\nb: 2\na: 3", "is not valid YAML (line 3, column 1): the key 'a' is repeated"),
        ("? [a]\n: b", "unhashable key"),
        ("\x00", "is not valid YAML: "),
        ("[" * 5000, "is not valid YAML: it cannot be read"),
    ],
)
def test_wrong_yaml(text: str, problem: str) -> None:
    assert problem in problem_of(text)


def test_tags_create_no_objects() -> None:
    assert "expected a list" in problem_of(
        "trainingInput: {args: !!python/object/apply:os.getcwd x}"
    )


@given(
    st.text(max_size=30), st.sampled_from(["", "hyperparameters: ", PARAMS + "  ", "a: &b [*b, "])
)
def test_any_text_parses_or_is_a_spec_error(text: str, prefix: str) -> None:
    try:
        found = parse_config(prefix + text)
    except SpecError:
        return
    assert found.space.parameters
