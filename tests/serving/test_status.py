from __future__ import annotations

import pytest

from timonel.serving.status import invalid_argument, without_folders


def test_an_error_does_not_repeat_names_of_any_length():
    error = invalid_argument(f"no signature {'x' * 10_000_000}")
    assert error.message.startswith("no signature xxx")
    assert error.message.endswith("x...")
    assert len(error.message) == len(str(error)) - len("INVALID_ARGUMENT: ") < 5000
    assert invalid_argument("short").message == "short"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("the SavedModel in /srv/a-b/m/1 cannot be read", "the SavedModel in .../1 cannot be read"),
        ("cannot read '/srv/m': denied", "cannot read '.../m': denied"),
        ("no version in /models", "no version in /models"),
        ("see s3://team/m/1 or https://a/b/c", "see s3://team/m/1 or https://a/b/c"),
        ("node a/b/c and 1/2", "node a/b/c and 1/2"),
        (
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:localhost/replica:0/task:0/device:CPU:0",
        ),
    ],
)
def test_clients_are_not_told_where_the_server_has_its_files(message, shown):
    assert without_folders(message) == shown
