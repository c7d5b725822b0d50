from __future__ import annotations

import importlib.util

import pytest

from timonel.data.runners.beam import BeamRunner, parse_options
from timonel.errors import MissingExtraError, SpecError


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
