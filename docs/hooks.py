"""Pages that are written from the code when the site is built."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from timonel.batch.predict_options import BatchOptions
from timonel.cli.catalogue import ENTRIES
from timonel.cli.defaults import PROTECTIVE, PROTECTIVE_COMMANDS, VARIABLES
from timonel.cli.groups import help_record
from timonel.cli.main import app
from timonel.data.convert_options import ConvertOptions
from timonel.edge.convert_options import ModelConvertOptions
from timonel.endpoints.autoscaling import policy
from timonel.endpoints.autoscaling.policy_files import parse_policy
from timonel.endpoints.deploy_options import DeployOptions
from timonel.errors import TimonelError
from timonel.options import options_of
from timonel.serving.serve_options import ServeOptions
from timonel.training.train_options import TrainOptions
from timonel.tuning.ai_platform import (
    Hyperparameters,
    JobConfig,
    ParameterSpec,
    TrainingInput,
)
from timonel.tuning.tune_options import TuneOptions

TUNING_EXAMPLE = """
trainingInput:
  pythonModule: trainer.task
  args: ["--epochs", "10"]
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: val_accuracy
    maxTrials: 40
    maxParallelTrials: 4
    enableTrialEarlyStopping: true
    params:
      - parameterName: learning_rate
        type: DOUBLE
        minValue: 0.0001
        maxValue: 0.1
        scaleType: UNIT_LOG_SCALE
      - parameterName: optimizer
        type: CATEGORICAL
        categoricalValues: [sgd, adam]
""".lstrip()
# By title: those of models that other tables link to are the models' names.
TUNING_PARTS: dict[str, Any] = {
    "Job": JobConfig,
    "TrainingInput": TrainingInput,
    "Hyperparameters": Hyperparameters,
    "ParameterSpec": ParameterSpec,
}
POLICY_EXAMPLE = """
metric: concurrency
target: 10
max_replicas: 20
scale_down_delay_s: 5m
forecast:
  lead_s: 60s
""".lstrip()


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/cli.md": command_line(),
        "reference/convert.md": python_options("convert", ConvertOptions),
        "reference/train.md": python_options("train", TrainOptions),
        "reference/tune.md": python_options("tune", TuneOptions),
        "reference/tuning-yaml.md": tuning_yaml(),
        "reference/scaling-policy.md": scaling_policy(),
        "reference/serve.md": python_options("serve", ServeOptions),
        "reference/deploy.md": python_options("deploy", DeployOptions),
        "reference/models-convert.md": python_options(
            "edge.convert_version", ModelConvertOptions, "models convert"
        ),
        "reference/predict-batch.md": python_options(
            "predict_batch", BatchOptions, "predict --batch"
        ),
        "reference/errors.md": errors(),
        "changelog.md": Path(config.config_file_path).with_name("CHANGELOG.md").read_text(),
    }
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put files of the repository where a page wants them, without their titles."""
    del page, files
    root = Path(config.config_file_path).parent

    def content(found: re.Match[str]) -> str:
        return (root / found[1]).read_text().partition("\n")[2].strip()

    return re.sub(r"<!-- content of (\S+) -->", content, markdown)


def command_line() -> str:
    """Return the reference of every command, from its own parameters."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="timonel")
    parts = ["# Command line\n", intro(group), options(group, context), precedence()]
    for section in dict.fromkeys(entry.section for entry in ENTRIES):
        parts.append(f"\n## {section}\n")
        for entry in (each for each in ENTRIES if each.section == section):
            command = group.get_command(context, entry.name)
            parts += command_pages(command, f"timonel {entry.name}", context)
    return "\n".join(parts)


def intro(group: Any) -> str:
    """Return what the program is and the options of every command."""
    return f"{group.help}\n\nGlobal options may appear anywhere before `--`:\n"


def precedence() -> str:
    """Return where the value of an option comes from, with the settings that have variables."""
    rows = [
        f"| `{setting.rpartition('.')[0] or 'every command'}` | "
        f"`{'--' + setting.rpartition('.')[2]}` | `{variable}` |"
        for setting, variable in VARIABLES.items()
    ]
    protective = ", ".join(_option_name(name) for name in sorted(PROTECTIVE))
    commands = " and ".join(f"`{name.replace('.', ' ')}`" for name in PROTECTIVE_COMMANDS)
    return "\n".join(
        [
            "\n## Order of settings\n",
            "The first that is given counts: the option on the command line, the environment",
            "variable, `timonel.toml` of the present folder, `~/.config/timonel/timonel.toml`, the",
            "default. These options have a variable; an empty one counts as not set.\n",
            "| Command | Option | Variable |",
            "|---|---|---|",
            *rows,
            "",
            "`TIMONEL_API_KEY` holds the key itself, `--api-key-file` names a file with it.\n",
            "The file of the present folder may come from somebody else. It must not set options",
            f"that protect you: {protective}, nor any option of {commands}.\n",
        ]
    )


def command_pages(command: Any, path: str, parent: typer.Context) -> list[str]:
    """Return a command's section, and those of its verbs."""
    context = typer.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    if hasattr(command, "list_commands"):
        parts = [f"### `{path}`\n", f"{command.help}\n"]
        for name in command.list_commands(context):
            parts += command_pages(command.get_command(context, name), f"{path} {name}", context)
        return parts
    usage = " ".join(piece for piece in command.collect_usage_pieces(context))
    level = "###" if path.count(" ") == 1 else "####"
    body = inspect.cleandoc(command.help or "")
    return [
        f"{level} `{path}`\n",
        f"```\n{path} {usage}\n```\n",
        f"{body}\n",
        options(command, context),
    ]


def options(command: Any, context: typer.Context) -> str:
    """Return a command's arguments and options as a table for each section of its help."""
    sections: dict[str, list[str]] = {}
    for param in command.get_params(context):
        record = help_record(param, context)
        if record and "--help" not in record[0] and "completion" not in record[0]:
            line = f"| <code>{escape(html.escape(record[0]))}</code> | {escape(record[1])} |"
            sections.setdefault(getattr(param, "rich_help_panel", None) or "Name", []).append(line)
    tables = [
        "\n".join([f"| {title} | What it is |", "|---|---|", *lines, ""])
        for title, lines in sections.items()
    ]
    return "\n".join(tables)


def python_options(function: str, kind: type, command: str | None = None) -> str:
    """Return the reference of the options that a function and its command share."""
    command = command or function
    lines = [
        f"# Options of {command}\n",
        f"Keywords of `timonel.{function}`. `timonel {command}` has the same options with `--`",
        "and hyphens: `--rest-port` is `rest_port`. Several values are a list in Python, and a",
        "repeated option on the command line.",
    ]
    panel = ""
    for name, (annotation, option) in options_of(kind).items():
        if option.panel != panel:
            panel = option.panel
            lines += [
                f"\n## {panel}\n",
                "| Option | Type | Default | What it is |",
                "|---|---|---|---|",
            ]
        value = option.computed or f"`{option.default!r}`"
        shown = inspect.formatannotation(annotation).replace("typing.", "")
        shown = shown.replace("collections.abc.", "").replace("os.PathLike[str]", "PathLike")
        lines.append(
            f"| `{name}` | <code>{escape(shown)}</code> | {value} | {escape(option.text)} |"
        )
    return "\n".join(lines) + "\n"


def tuning_yaml() -> str:
    """Return the reference of AI Platform's YAML, from the models that read it."""
    lines = [
        "# YAML of tuning jobs\n",
        "`timonel tune --config FILE` reads the configuration of an AI Platform training job, or",
        "its `hyperparameters` alone. Unknown keys are errors.\n",
        "```yaml",
        TUNING_EXAMPLE.rstrip(),
        "```",
    ]
    for title, model in TUNING_PARTS.items():
        lines += yaml_keys(title, model)
        if model.unused:
            listed = ", ".join(f"`{key}`" for key in sorted(model.unused))
            lines.append(f"\nAccepted and ignored: {listed}.")
    return "\n".join(lines) + "\n"


def scaling_policy() -> str:
    """Return the reference of scaling policies, from the models that read them."""
    parse_policy(POLICY_EXAMPLE)
    lines = [
        "# Scaling policies\n",
        "`timonel endpoints simulate --policy FILE` reads a YAML file with these keys, all of them",
        "optional, or a manifest: a Knative Service, a KServe InferenceService or a",
        "HorizontalPodAutoscaler. Names and defaults are those of Knative and Kubernetes. Times",
        "are seconds, or texts such as `90s` and `5m`.\n",
        "```yaml",
        POLICY_EXAMPLE.rstrip(),
        "```",
    ]
    for model in (
        policy.ScalingPolicy, policy.Forecast, policy.ResourceTarget, policy.Behavior,
        policy.ScalingRules, policy.ScalingLimit,
    ):  # fmt: skip
        lines += yaml_keys(model.__name__, model)
    lines += [
        "\nThe default target is 100 for concurrency, or `container_concurrency`; 200 for rps; 80",
        "percent for cpu and memory. The default algorithm is kpa for concurrency and rps.",
    ]
    return "\n".join(lines) + "\n"


def yaml_keys(title: str, model: Any) -> list[str]:
    """Return the section of a model: a table of its keys."""
    lines = [f"\n## {title}\n", "| Key | Values | Default | What it is |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default}`"
        if field.default in (None, ()) or isinstance(field.default, BaseModel):
            default = ""
        shown = escape(_yaml_type(field.annotation))
        key = field.alias or name
        lines.append(f"| `{key}` | {shown} | {default} | {field.description} |")
    return lines


def _yaml_type(kind: Any) -> str:
    """Return the values of a YAML key in words."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    parts = [part for part in get_args(kind) if part not in (type(None), ...)]
    if get_origin(kind) is tuple:
        return f"list of: {_yaml_type(parts[0])}"
    if parts == [int, float]:
        return "number"
    if parts:
        return _yaml_type(parts[0])
    names = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}
    return names.get(kind) or f"[{kind.__name__}](#{kind.__name__.lower()})"


def errors() -> str:
    """Return the tree of errors with their exit codes."""
    lines = [
        "# Errors and exit codes\n",
        "Errors end as one line on the standard error: what was expected, what came, what to do.",
        "`--debug` shows the traceback as well. Anything that is not in this table is a defect:",
        "exit code 1, and the line says where its traceback was written.\n",
        "| Exit code | Class | When |",
        "|---|---|---|",
    ]
    for kind in tree(TimonelError):
        doc = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        lines.append(f"| {kind.exit_code} | `{kind.__name__}` | {doc} |")
    return "\n".join(lines) + "\n"


def tree(kind: type[TimonelError]) -> list[type[TimonelError]]:
    """Return a class and all below it that timonel.errors defines."""
    below = [each for each in kind.__subclasses__() if each.__module__ == "timonel.errors"]
    return [kind, *[found for each in below for found in tree(each)]]


def escape(text: str) -> str:
    """Return ``text`` as it may stand in a table."""
    return " ".join(text.split()).replace("|", "&#124;")


def _option_name(name: str) -> str:
    command, _, option = name.rpartition(".")
    return f"`{command} --{option}`".replace("` ", "`")
