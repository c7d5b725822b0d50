from __future__ import annotations

import pytest

from timonel.data import Dataset, load_registry
from timonel.storage import Workspace
from timonel.tracking import start_run
from timonel.training.worker import managed


@pytest.mark.parametrize(("batch_size", "left_out"), [(16, 0), (64, 32)])
def test_rows_that_are_left_out_are_told(
    batch_size: int, left_out: int, workspace: Workspace, dataset: Dataset
) -> None:
    import timonel.data

    run = start_run(workspace, "train")
    told: list[load_registry.LoadRecord] = []
    load_registry.on_load.append(told.append)
    load_registry.configure(load_registry.InputShard(0, 2))
    try:
        timonel.data.load(dataset.uri, batch_size=batch_size)
    finally:
        load_registry.configure(load_registry.InputShard())
        load_registry.on_load.remove(told.append)
    warnings: list[str] = []
    managed.report_load(run, warnings.append, told[0])
    (records,) = {record.records for record in told}
    assert records == 96
    assert [
        message.startswith(f"Each epoch skips {left_out} of 96 training examples")
        for message in warnings
    ] == ([True] if left_out else [])
