"""Style of figures and pages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from timonel.endpoints.figures import new_figure, set_log_ticks, style, to_svg


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.5, 60_000),
        (3, 4000),
        (10, 150),
        (9, 110),
        (21, 35),
        (30, 30.5),
        (0.9, 1.1),
        (0.1, 2.5),
        (8, 44),
        (1, 99),
    ],
)
def test_labels_of_a_log_axis_do_not_overlap(low: float, high: float) -> None:
    figure = new_figure(11, 9)
    axes = figure.subplots(4, 1)[1]
    axes.plot([0, 1, 2], [low, high, low], label="version 1")
    set_log_ticks(axes)
    style(axes)
    figure.canvas.draw()
    bottom, top = axes.get_ylim()
    labels = [
        label
        for minor in (False, True)
        for label in axes.yaxis.get_ticklabels(minor=minor)
        if label.get_text() and bottom <= label.get_position()[1] <= top
    ]
    extents = sorted((box.y0, box.y1) for box in (label.get_window_extent() for label in labels))
    assert len(extents) >= 2
    assert all(before[1] <= after[0] for before, after in pairwise(extents))


def test_equal_figures_have_equal_bytes() -> None:
    def drawn() -> bytes:
        figure = new_figure(4, 3)
        axes = figure.subplots()
        axes.fill_between([0, 1], [1, 2], label="x")
        style(axes)
        return to_svg(figure)

    assert drawn() == drawn()
