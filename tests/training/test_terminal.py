from __future__ import annotations

import pytest

from timonel.training.terminal import is_noise, says_no_gpu


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        ("WARNING: All log messages before absl::InitializeLog() is called are written to", True),
        ("I0000 00:00:1795214799.561734   14684 port.cc:153] oneDNN custom operations", True),
        ("E0000 00:00:1795214817.167494   14684 cuda_platform.cc:52] failed call to cuInit", True),
        ("2026-11-20 22:16:57.123456: I tensorflow/core/platform/cpu_feature_guard.cc:1]", True),
        ("F0000 00:00:1795214799.561734   14684 check.cc:1] Check failed", False),
        ("Epoch 1/2\n", False),
        ("I think so\n", False),
        ("timonel: asked to leave\n", False),
        ("\n", False),
    ],
)
def test_what_tensorflow_says_of_its_start(line: str, noise: bool) -> None:
    assert is_noise(line) == noise


def test_the_missing_driver_of_a_machine_without_gpus_is_known() -> None:
    said = "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: x (%d)"
    assert says_no_gpu(said % 303)
    assert not says_no_gpu(said % 100)
