"""What is decided before the first step."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tf_keras

from timonel.errors import SpecError, TimonelError
from timonel.training.settings import Settings
from timonel.training.worker.ps.feeding import Horizon
from timonel.training.worker.ps.ledger import Policy, Tally
from timonel.training.worker.ps.preflight import (
    check_model,
    check_precision,
    describe,
    parts_of_batches,
    policy_of,
    summarize,
)

KERASES = pytest.mark.parametrize("flavour", [keras, tf_keras])


def _settings(**given: Any) -> Settings:
    return Settings.of({"strategy": "parameter-server", "ps": 1, "workers": 3, **given})


def _model(flavour: Any, *layers: Any, **options: Any) -> Any:
    model = flavour.Sequential([flavour.layers.Input((4,)), *layers, flavour.layers.Dense(1)])
    model.compile("sgd", **{"loss": "mse", **options})
    return model


def test_how_updates_are_made() -> None:
    assert policy_of(_settings(max_staleness=2), 3, 0) == Policy(max_staleness=2)
    assert policy_of(_settings(backup_workers=1), 3, 0) == Policy(needed=2, synchronous=True)
    # An elastic job may have begun with fewer workers than backup workers were asked for.
    assert policy_of(_settings(backup_workers=2), 1, 0).needed == 1
    warming = _settings(backup_workers=1, warmup_epochs=2)
    assert policy_of(warming, 3, 1) == Policy(attempts=1)
    assert policy_of(warming, 3, 2).synchronous


def test_batches_are_divided_among_several_workers_that_are_waited_for() -> None:
    assert parts_of_batches(_settings(backup_workers=1), 3) == 2
    assert parts_of_batches(_settings(backup_workers=1), 2) == 1  # one worker takes all of a batch
    assert parts_of_batches(_settings(), 3) == 1


def test_by_default_a_gradient_may_be_an_update_old_for_each_other_worker() -> None:
    assert policy_of(_settings(), 3, 0) == Policy(max_staleness=2)
    assert policy_of(_settings(), 1, 0) == Policy(max_staleness=0)
    assert policy_of(_settings(max_staleness="any"), 3, 0) == Policy(max_staleness=None)
    assert policy_of(_settings(max_staleness="8"), 3, 0) == Policy(max_staleness=8)
    with pytest.raises(SpecError, match="--max-staleness must be a whole number, got 'some'"):
        _settings(max_staleness="some")


def test_staleness_is_said_at_the_start_and_at_the_end() -> None:
    begun = describe(_settings(), 3)
    assert "gradients up to 2 updates old count" in begun
    assert "--backup-workers 0 trains as one process does" in begun
    assert "of any age count in full" in describe(_settings(max_staleness="any"), 3)
    tally = Tally(updates=40, dropped=10, staleness_sum=60, staleness_max=2, weight_sum=20)
    ended = summarize(_settings(), tally)
    assert ended is not None
    assert "1.5 updates old on average, 2 at most, and counted 0.50 on average" in ended
    assert "10 of 50 were too old and computed again" in ended
    assert summarize(_settings(backup_workers=0), tally) is None


def test_what_a_batch_is_is_said() -> None:
    assert "3 workers takes a whole batch" in describe(_settings(max_staleness=4), 3)
    assert "4 updates old" in describe(_settings(max_staleness=4), 3)
    assert "divided among 2 of 3 workers" in describe(_settings(backup_workers=1), 3)


@pytest.mark.parametrize(
    ("horizon", "limit"),
    [
        (Horizon(), None),
        (Horizon(steps=5), 5),
        (Horizon(steps=5, every=4, done=6), 2),
        (Horizon(every=4, done=8), 4),
        (Horizon(steps=1, every=4, done=8), 1),
    ],
)
def test_nothing_is_taken_ahead_beyond_a_checkpoint(horizon: Horizon, limit: int | None) -> None:
    assert horizon.limit() == limit


@KERASES
def test_models_that_workers_cannot_train_are_refused(flavour: Any) -> None:
    check_model(flavour, _model(flavour))
    with pytest.raises(TimonelError, match="run_eagerly=True"):
        check_model(flavour, _model(flavour, run_eagerly=True))


def test_a_legacy_optimizer_is_refused() -> None:
    model = _model(tf_keras)
    model.compile(tf_keras.optimizers.legacy.SGD(), "mse")
    with pytest.raises(TimonelError, match="the legacy optimizer SGD"):
        check_model(tf_keras, model)


@KERASES
def test_xla_is_refused_where_the_script_asks_for_it(flavour: Any) -> None:
    with pytest.raises(TimonelError, match="jit_compile=True"):
        check_model(flavour, _model(flavour), is_compiled=True)


def test_a_precision_that_a_keras_cannot_train_in_is_refused() -> None:
    asked = _settings(precision="float16")
    check_precision(keras, asked)
    check_precision(tf_keras, _settings(precision="bfloat16"))
    with pytest.raises(TimonelError, match="tf-keras does not support"):
        check_precision(tf_keras, asked)


@KERASES
def test_layers_that_go_on_from_batch_to_batch_are_refused(flavour: Any) -> None:
    begin = flavour.layers.Input(batch_shape=(2, 3, 4))
    end = flavour.layers.LSTM(2, stateful=True, name="going_on")(begin)
    model = flavour.Model(begin, end)
    model.compile("sgd", "mse")
    with pytest.raises(TimonelError, match="the stateful layer going_on"):
        check_model(flavour, model)
