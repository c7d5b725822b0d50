from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from timonel.storage import Workspace
from timonel.tracking import read_run, start_run
from timonel.training.worker import program


class Tensor:
    """As much of TensorFlow's as counts here."""

    def numpy(self) -> np.float32:
        return np.float32(0.5)


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (3, 3),
        ({"a": np.float64(0.5), "b": np.arange(2)}, {"a": 0.5, "b": [0, 1]}),
        (Tensor(), 0.5),
        ((1, "x", None), [1, "x", None]),
    ],
)
def test_what_json_can_hold(workspace: Workspace, value: Any, recorded: Any) -> None:
    run = start_run(workspace, "train")
    program.record_result(run, value)
    events = read_run(workspace, run.run_id).events()
    assert [event["value"] for event in events if event["type"] == "result"] == [recorded]


def test_what_it_cannot_hold_is_said(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    run = start_run(workspace, "train")
    with caplog.at_level(logging.INFO):
        program.record_result(run, {"model": object()})
    assert read_run(workspace, run.run_id).events() == []
    assert "is not recorded" in caplog.text
