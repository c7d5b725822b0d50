"""Options of `timonel.tune` and ``timonel tune``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict, get_args

from timonel.options import Option
from timonel.training.train_options import TrainOptions

Goal = Literal["maximize", "minimize"]
Algorithm = Literal["bayesian", "gp", "tpe", "cma-es", "random", "grid", "qmc", "google-vizier"]
Rule = Literal["none", "median", "decay-curve", "convex", "hyperband"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
RULES: tuple[str, ...] = get_args(Rule)

# Sections of the command line's help.
STUDY = "The study"
LIMITS = "End of trials and of the study"


class StudyOptions(TypedDict, total=False):
    """Options of a study."""

    goal: Annotated[
        Goal | Sequence[Goal] | None,
        Option(
            None,
            "'maximize' or 'minimize', for all metrics or for each.",
            STUDY,
            computed="minimize a loss or an error, maximize an accuracy",
        ),
    ]
    trials: Annotated[int, Option(20, "Number of trials.", STUDY, least=1)]
    parallel: Annotated[
        int,
        Option(
            1,
            "Number of trials at the same time. On one machine, they share its cores and GPUs.",
            STUDY,
            least=1,
        ),
    ]
    study: Annotated[
        str | None, Option(None, "Name of the study.", STUDY, computed="study-DATE", metavar="NAME")
    ]
    algorithm: Annotated[
        Algorithm, Option("bayesian", "Algorithm that proposes parameters.", STUDY)
    ]
    constraints: Annotated[
        Sequence[str],
        Option(
            (),
            "Conditions on the parameters of all trials, such as 'layers * units <= 1024'.",
            STUDY,
            metavar="CONDITION",
            flag="--constraint",
        ),
    ]
    thresholds: Annotated[
        Sequence[str],
        Option(
            (),
            "Bounds of metrics, such as 'latency_ms <= 20'; trials beyond them are infeasible.",
            STUDY,
            metavar="BOUND",
            flag="--threshold",
        ),
    ]
    start_from: Annotated[
        Sequence[str],
        Option(
            (),
            "An earlier study, whose results the algorithm learns from, or a run, whose "
            "parameters are tried first.",
            STUDY,
            metavar="STUDY|RUN",
        ),
    ]
    storage: Annotated[
        str | None,
        Option(
            None,
            "Database of the trials, such as postgresql://user@host/database.",
            STUDY,
            computed="a file of the workspace",
            metavar="URL",
        ),
    ]
    stopping_rule: Annotated[Rule, Option("none", "Rule that stops trials early.", LIMITS)]
    max_steps: Annotated[
        int | None,
        Option(
            None,
            "Epochs of a complete trial, for the stopping rule.",
            LIMITS,
            computed="those of the longest trial so far",
            least=1,
        ),
    ]
    max_failed: Annotated[
        int | None,
        Option(None, "End the study once this many trials have failed.", LIMITS, least=1),
    ]
    max_seconds: Annotated[
        float | None, Option(None, "Start no trial after this many seconds.", LIMITS)
    ]
    patience: Annotated[
        int | None,
        Option(None, "End the study after this many trials without progress.", LIMITS, least=1),
    ]


class TuneOptions(StudyOptions, TrainOptions, total=False):
    """Options of a study and of the jobs of its trials; the seed is that of both."""
