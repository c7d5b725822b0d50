from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.contracts.runners import images, planned
from timonel.data.runners import Report, beam
from timonel.data.runners.beam import BeamRunner, parse_options
from timonel.data.runners.exchange import Exchange
from timonel.errors import InputError, MissingExtraError, SpecError


def test_options_are_flags() -> None:
    assert parse_options("") == []
    assert parse_options("runner=SparkRunner,spark_master_url=local[4]") == [
        "--runner=SparkRunner",
        "--spark_master_url=local[4]",
    ]
    assert parse_options('environment_config={"a": 1, "b": 2},parallelism=2') == [
        '--environment_config={"a": 1, "b": 2}',
        "--parallelism=2",
    ]
    assert parse_options("no_use_public_ips=true,region=x") == ["--no_use_public_ips", "--region=x"]
    with pytest.raises(SpecError, match="expected options of Beam such as runner=FlinkRunner"):
        parse_options("FlinkRunner")


@pytest.mark.skipif(importlib.util.find_spec("apache_beam") is not None, reason="Beam is there")
def test_without_beam() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'timonel\[beam\]'"):
        BeamRunner()


@pytest.mark.parametrize("starts", [True, False])
def test_workers_that_do_not_start_are_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    starts: bool,
) -> None:
    checked = threading.Event()
    has_started = Exchange.has_started

    def check(exchange: Exchange) -> bool:
        found = has_started(exchange)
        checked.set()
        return found

    def run(_flags: Any, _work: Any, exchange: Exchange, _plans: Any) -> None:
        if starts:
            exchange.start()
        monkeypatch.setattr(Exchange, "has_started", check)
        assert checked.wait(10)

    monkeypatch.setattr(beam, "_START_S", 0.0)
    monkeypatch.setattr(beam, "_check_flags", lambda _: None)
    monkeypatch.setattr(beam, "_run", run)
    job, plans = planned(images(tmp_path), tmp_path / "job")
    with pytest.raises(InputError, match="wrote no shard"):
        BeamRunner().run(job, plans, Mock(Report))
    assert ["no worker of Apache Beam has started" in line for line in caplog.messages] == (
        [] if starts else [True]
    )
