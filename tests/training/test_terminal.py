from __future__ import annotations

import io
from pathlib import Path

import pytest

from timonel.training.terminal import Output, is_noise, says_no_gpu


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        (b"WARNING: All log messages before absl::InitializeLog() is called are written to", True),
        (b"I0000 00:00:1795214799.561734   14684 port.cc:153] oneDNN custom operations", True),
        (b"E0000 00:00:1795214817.167494   14684 cuda_platform.cc:52] failed call to cuInit", True),
        (b"2026-11-20 22:16:57.123456: I tensorflow/core/platform/cpu_feature_guard.cc:1]", True),
        (b"F0000 00:00:1795214799.561734   14684 check.cc:1] Check failed", False),
        (b"Epoch 1/2\n", False),
        (b"I think so\n", False),
        (b"timonel: asked to leave\n", False),
        (b"\n", False),
    ],
)
def test_what_tensorflow_says_of_its_start(line: bytes, noise: bool) -> None:
    assert is_noise(line) == noise


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    written = b"I0000 00:00:1 1 a.cc:1] x\nEpoch 1\n\xff\nno end"
    shown = io.StringIO()
    for _ in range(2):
        Output(io.BytesIO(written), tmp_path / "logs" / "chief-0.log", shown).finish()
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == written * 2
    assert shown.getvalue() == "Epoch 1\n\ufffd\nno end" * 2


def test_the_missing_driver_of_a_machine_without_gpus_is_known() -> None:
    said = "E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: INTERNAL: x (%d)"
    assert says_no_gpu(said % 303)
    assert not says_no_gpu(said % 100)
