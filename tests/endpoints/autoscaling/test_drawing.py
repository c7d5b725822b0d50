"""Figures of simulations."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from timonel.endpoints.autoscaling.drawing import svg, write_figure
from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.endpoints.autoscaling.simulation import ServiceModel, Simulation, simulate
from timonel.endpoints.autoscaling.traces import Trace, spike
from timonel.errors import SpecError


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulate(spike(), ScalingPolicy(target=1), ServiceModel())


def test_an_svg_file(simulation: Simulation, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    write_figure(path, simulation, "a & $b", {})
    ET.fromstring(path.read_bytes())


def test_a_page_with_facts(simulation: Simulation, tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    write_figure(path, simulation, "<title>", {"cold starts": "<4>"})
    page = path.read_text()
    assert "<h1>&lt;title&gt;</h1>" in page
    assert "<th scope=row>cold starts</th><td>&lt;4&gt;</td>" in page
    assert "data:image/svg+xml;base64," in page


def test_another_ending_is_refused(simulation: Simulation, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"end the name with \.svg or \.html"):
        write_figure(tmp_path / "plot.pdf", simulation, "", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", [1, 2, 5000])
def test_any_length_can_be_drawn(seconds: int) -> None:
    trace = Trace(np.zeros(seconds), "rps")
    ET.fromstring(svg(simulate(trace, ScalingPolicy(), ServiceModel()), "idle"))
