from __future__ import annotations

from pathlib import Path

import pytest

from timonel.endpoints.autoscaling import AutoscalerState, ScalingPolicy
from timonel.endpoints.control.scaling import Scaler
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.endpoints.folder import EndpointFolder
from timonel.errors import CorruptError, FormatError
from timonel.storage.document_store import FolderDocuments

POLICY = ScalingPolicy(target=10, utilization_percent=100, min_replicas=1, max_replicas=20)
FORECAST = ScalingPolicy(**{**POLICY.model_dump(), "forecast": {"lead_s": 60}})
BEGIN = 1_000_000.0


def run(scaler: Scaler, begin: float, seconds: int, load: float, ready: int = 4) -> None:
    for second in range(seconds):
        now = begin + second
        scaler.record(now, ReplicaLoad(load), 0)
        scaler.step(now, ready, ready, reachable=True)


def test_an_autoscaler_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Scaler(FORECAST, BEGIN, 1)
    run(first, BEGIN, 70, 40.0)
    state = first.unsaved(BEGIN + 100)
    assert state is not None
    (tmp_path / "digits").mkdir()
    folder = EndpointFolder(FolderDocuments(tmp_path), "digits")
    assert folder.autoscaler(1) is None
    folder.write_autoscaler(1, state)
    saved = folder.autoscaler(1)
    assert saved == state
    second = Scaler(FORECAST, BEGIN + 72, 4, saved)
    assert second.pattern == first.pattern
    assert second.step(BEGIN + 72, 4, 4, reachable=True).replicas == 4
    folder.write_autoscaler(2, state)
    folder.remove_autoscalers([2])
    assert (folder.autoscaler(1), folder.autoscaler(2)) == (None, state)


def test_unreadable_states_are_errors(tmp_path: Path) -> None:
    folder = EndpointFolder(FolderDocuments(tmp_path), "digits")
    folder.write_autoscaler(1, AutoscalerState.begin(0.0, POLICY))
    path = tmp_path / "digits" / "autoscalers" / "1.json"
    path.write_text(path.read_text().replace('"stable"', '"table"'))
    with pytest.raises(FormatError, match="state of the autoscaler cannot be read"):
        folder.autoscaler(1)
    path.write_text("{")
    with pytest.raises(CorruptError, match="not valid JSON"):
        folder.autoscaler(1)


def test_states_are_saved_every_ten_seconds_and_after_decisions() -> None:
    scaler = Scaler(POLICY, BEGIN, 1)
    assert scaler.unsaved(BEGIN) is not None
    assert scaler.unsaved(BEGIN + 9) is None
    assert scaler.unsaved(BEGIN + 10) is not None
    scaler.record(BEGIN + 11, ReplicaLoad(100.0), 0)
    assert scaler.step(BEGIN + 11, 1, 1, reachable=True).replicas > 1
    assert scaler.unsaved(BEGIN + 11) is not None
    assert scaler.unsaved(BEGIN + 12) is None
    assert scaler.unsaved(BEGIN - 3600) is not None, "the clock was set back"


def test_a_new_version_expects_its_share_of_the_load() -> None:
    first = Scaler(FORECAST, BEGIN, 1)
    run(first, BEGIN, 3 * 60 * 2, 40.0)
    assert first.pattern is not None
    second = Scaler(FORECAST, BEGIN, 1)
    second.expect(first.pattern, 0.25)
    assert second.pattern is not None
    assert (second.pattern.loads, second.pattern.ratio) == (first.pattern.loads, 0.25)
    second.expect(first.pattern, 1.0)
    assert second.pattern.ratio == 0.25, "it has a pattern already"


def test_another_period_has_another_pattern() -> None:
    scaler = Scaler(FORECAST, BEGIN, 1)
    run(scaler, BEGIN, 2, 40.0)
    scaler.configure(POLICY)
    scaler.configure(FORECAST)
    assert scaler.pattern is not None, "the same period"
    week = {**FORECAST.model_dump(), "forecast": {"period_s": 7 * 86400}}
    scaler.configure(ScalingPolicy.model_validate(week))
    assert scaler.pattern is None
