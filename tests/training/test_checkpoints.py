from __future__ import annotations

from timonel.training import checkpoints
from timonel.training.worker.state.checkpoint_format import Progress


def test_names_of_folders_sort_by_age() -> None:
    three = Progress((0, 1, 2), {}, 30)
    progresses = [
        Progress().within(4),
        Progress((0,), {}, 10),
        Progress((0,), {}, 10).within(3),
        three,
        three.within(10),
        three.as_finished(),
    ]
    names = [progress.checkpoint_name for progress in progresses]
    assert sorted(names, key=checkpoints.age) == names
    assert all(map(checkpoints.is_name, names))
    assert names[-1] == "final"
    assert not any(
        map(checkpoints.is_name, ["epoch-", "epoch-1-step-", ".tmp-1-x", "final2", "0001"])
    )
