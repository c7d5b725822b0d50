from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.containers import BuiltImage
from timonel.containers.image import MANIFEST_TYPE, encode, image_manifest
from timonel.containers.layout import Layout


@pytest.fixture
def base(tmp_path: Path) -> Layout:
    """A base without layers, which knows no platform and no Python."""
    layout = Layout(tmp_path / "base")
    config = encode({"config": {}, "rootfs": {"type": "layers", "diff_ids": []}})
    layout.push_bytes(config)
    layout.push_tag(encode(image_manifest(config, [])), MANIFEST_TYPE)
    return layout


@pytest.mark.process
def test_build_writes_a_layout_and_prints_its_name(
    timonel: Timonel, base: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/requirements.txt").write_text("")
    arguments = (
        *("image", "build", f"oci:{tmp_path}/out:v1", "--folder", str(tmp_path / "code")),
        *("--base", f"oci:{base.root}", "--requirements", str(tmp_path / "code/requirements.txt")),
        *("--env", "A=b=c", "--", "python3", "-c", "1"),
    )
    built = timonel(*arguments)
    assert built.exit_code == 0, built.err
    manifest, digest = Layout(tmp_path / "out", "v1").manifest()
    assert built.out.strip() == f"oci:{tmp_path}/out@{digest}"
    config = json.loads(Layout(tmp_path / "out").blob(manifest["config"]["digest"]))["config"]
    assert config["Cmd"] == ["python3", "-c", "1"]
    assert "A=b=c" in config["Env"]
    again = json.loads(timonel(*arguments[:-4], "--json", *arguments[-4:]).out)
    assert again["digest"] == digest
    assert again["uploaded_bytes"] == 0


def test_packages_that_are_left_out_are_named_by_reason(
    timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    editable, system = "installed in editable mode", "installed without RECORD"
    left_out = {"mine": editable, "yours": system, "ours": editable}
    image = BuiltImage("oci:out", "sha256:1", 0, left_out)
    monkeypatch.setattr("timonel.containers.build_image", lambda *_, **__: image)
    assert timonel("image", "build", "oci:out").err.splitlines() == [
        "left out of the image, installed in editable mode: mine, ours",
        "left out of the image, installed without RECORD: yours",
    ]
    assert json.loads(timonel("image", "build", "oci:out", "--json").out)["left_out"] == [*left_out]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("A B",), "'A B' is no name of an image"),
        (("oci:out", "--folder", "nothing"), "no folder at nothing"),
        (("oci:out", "--env", "A"), "expected NAME=VALUE, got 'A'"),
        (("oci:out", "--base", "slef"), "no base image 'slef': did you mean 'self'?"),
    ],
)
def test_mistakes(timonel: Timonel, arguments: tuple[str, ...], problem: str) -> None:
    failed = timonel("image", "build", *arguments)
    assert failed.exit_code == 2
    assert problem in failed.err
