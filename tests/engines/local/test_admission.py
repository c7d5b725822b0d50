"""What the local engine refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timonel.engines import JobSpec, Placement, Resources, RoleSpec, Toleration, Volume
from timonel.engines.local.admission import check_admission
from timonel.errors import NotFoundError, SpecError


def spec_of(folder: Path, role: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    values = {"source": str(folder), **fields}
    return JobSpec(
        job_id="job",
        module="m",
        roles=(RoleSpec(name="worker", replicas=4, min_replicas=2, **(role or {})),),
        **values,
    )


def test_what_fits_is_admitted(tmp_path: Path) -> None:
    resources = Resources(cpus=0.01, memory_bytes=1 << 20)
    check_admission(spec_of(tmp_path, {"resources": resources}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "python:3.11"}, "the job has an image"),
        ({"volumes": (Volume(source="pvc://data", mount_path="/data"),)}, "the job has volumes"),
        ({"source": None}, "needs the source"),
        ({"source": "s3://bucket/folder"}, "a folder of this machine or an archive"),
    ],
)
def test_what_only_clusters_have_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        check_admission(spec_of(tmp_path, **fields))


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement(node_selector={"zone": "a"}), "worker has node selectors"),
        (Placement(tolerations=(Toleration(key="spot"),)), "worker has tolerations"),
    ],
)
def test_other_machines_are_refused(tmp_path: Path, placement: Placement, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_admission(spec_of(tmp_path, {"placement": placement}))


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (Resources(cpus=10_000), r"needs 20,000 CPUs, but this machine has \d"),
        (Resources(memory_bytes=1 << 60), "bytes of memory, but this machine has"),
        (Resources(accelerators={"google.com/tpu": 4}), "needs 8 google.com/tpu, .* has 0"),
    ],
)
def test_more_than_there_is_is_refused(tmp_path: Path, resources: Resources, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_admission(spec_of(tmp_path, {"resources": resources}))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"the working folder does not exist: .*nosuch"):
        check_admission(spec_of(tmp_path / "nosuch"))
