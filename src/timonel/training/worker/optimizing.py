"""Apply a job's precision, gradient, learning rate and batch settings."""

from __future__ import annotations

import functools
import logging
from typing import Any

from timonel.errors import SpecError
from timonel.training.settings import Settings
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.inputs import batches
from timonel.training.worker.numerics import learning_rate, precision
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private import optimizers

logger = logging.getLogger(__name__)


def install(keras: Any, fits: Fits, settings: Settings, replicas: int) -> None:
    """Apply the settings to the optimizers of ``keras`` and to ``fit`` calls.

    Args:
        keras: The Keras module that the script uses.
        fits: The ``fit`` calls.
        settings: How the job trains.
        replicas: Number of replicas that train together.
    """
    asked = settings.batches
    plan = Plan(settings.distribution.compress_gradients, asked.accumulate_gradients)
    rule = learning_rate.rule(
        asked.scale_learning_rate, replicas=replicas, warmup=asked.learning_rate_warmup
    )
    optimizers.install(keras, plan, rule)
    if not rule.changes_nothing:
        logger.info("%s", learning_rate.described(rule, asked.scale_learning_rate, replicas))
    per_replica = asked.batch_size_is == "per-replica"
    fits.before_fit.append(
        functools.partial(_prepare, keras, settings, plan, rule, replicas if per_replica else 1)
    )
    fits.learning_rate = lambda model: optimizers.learning_rate(model.optimizer, rule)
    fits.describe_batches = functools.partial(
        batches.described,
        replicas=replicas,
        per_replica=per_replica,
        accumulate=asked.accumulate_gradients,
    )


def _prepare(
    keras: Any,
    settings: Settings,
    plan: Plan,
    rule: Rule,
    batch_factor: int,
    model: Any,
    arguments: dict[str, Any],
) -> None:
    """Prepare a model and its ``fit`` arguments, before its state is restored."""
    precision.warn_of_own_policy(keras, settings.numerics)
    if settings.numerics.xla:
        precision.compile_with_xla(model)
    if plan != Plan() or not rule.changes_nothing:
        _check_optimizer(model.optimizer, plan)
    batches.make_global(arguments, batch_factor)


def _check_optimizer(optimizer: Any, plan: Plan) -> None:
    optimizers.require_supported(optimizer)
    if plan.accumulate > 1 and optimizers.accumulates_by_itself(optimizer):
        raise SpecError(
            "expected gradients to be accumulated by the job or by the script's optimizer, got "
            "both",
            hint="leave out --accumulate-gradients, or gradient_accumulation_steps in the script",
        )
