"""Apply a job's precision, gradient, learning rate and batch settings."""

from __future__ import annotations

import logging
from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.fit.services import Services
from timonel.training.worker.inputs import fit_data
from timonel.training.worker.numerics import learning_rate, precision
from timonel.training.worker.numerics.gradients import GradientPlan
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.private import keras_fit, optimizers

logger = logging.getLogger(__name__)


class OptimizerOptions(FitPlugin):
    """Applies the settings to a Keras' optimizers and to ``fit`` calls."""

    is_for_inner_fits = True

    def __init__(self, services: Services) -> None:
        self._keras = services.keras
        self._settings = services.settings
        self._replicas = services.replicas
        self._plan = GradientPlan(
            self._settings.distribution.compress_gradients,
            self._settings.batches.accumulate_gradients,
        )
        self._run = services.run
        self._recorded = ""
        self._rule = learning_rate.rule_of(self._settings, self._replicas)

    def install(self) -> None:
        """Patch the optimizers."""
        optimizers.install(self._keras, self._plan, self._rule)
        if not self._rule.changes_nothing:
            scaling = self._settings.batches.scale_learning_rate
            logger.info("%s", learning_rate.describe(self._rule, scaling, self._replicas))

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:
        """Compile with XLA, check the optimizer, and make batch sizes global."""
        policy = keras_fit.policy_of(self._keras)
        precision.warn_of_own_policy(policy, self._settings.numerics)
        policies = keras_fit.policies_in(model)  # of the layers, which the script chooses
        if self._run is not None and policies not in {"", self._recorded}:
            self._recorded = policies
            self._run.event("devices", precision=policies)
        if self._settings.numerics.xla:
            precision.compile_with_xla(model)
        if self._plan != GradientPlan() or not self._rule.changes_nothing:
            check_optimizer(model.optimizer, self._plan)
        if self._settings.batches.batch_size_is == "per-replica":
            fit_data.make_global(arguments, self._replicas)


def check_optimizer(optimizer: Any, plan: GradientPlan) -> None:
    """Check that the job's options apply to an optimizer."""
    optimizers.require_supported(optimizer)
    if plan.accumulate > 1 and optimizers.accumulates_by_itself(optimizer):
        raise SpecError(
            "both the job and the script's optimizer accumulate gradients",
            hint="drop --accumulate-gradients, or gradient_accumulation_steps in the script",
        )
