"""The pipeline for Dataflow, built without a connection to Google Cloud."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.runners import images, planned
from timonel.data.runners.beam import build, parse_options
from timonel.data.runners.exchange import Exchange
from timonel.data.runners.portable import PortableJob

pytestmark = [pytest.mark.beam, pytest.mark.filterwarnings("default")]

OPTIONS = (
    "runner=DataflowRunner,project=team-project,region=europe-west1,temp_location=gs://team/temp,"
    "no_use_public_ips=true,no_auth=true,dry_run=yes"
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    """The pipeline as it would be sent to Dataflow."""
    pytest.importorskip("google.cloud.storage", reason="needs apache-beam[gcp]")
    job, plans = planned(images(tmp_path), tmp_path / "job")
    exchange = Exchange("gs://team/temp/timonel-0123456789abcdef")
    made = build(parse_options(OPTIONS), PortableJob.of(job), exchange, plans, tmp_path)
    return made.run().job.proto_pipeline


def test_the_pipeline(pipeline: Any) -> None:
    steps = {step.unique_name for step in pipeline.components.transforms.values()}
    assert {"plans", "distribute", "write"} <= steps
    (write,) = (
        step for step in pipeline.components.transforms.values() if step.unique_name == "write"
    )
    environment = pipeline.components.environments[write.environment_id]
    assert environment.urn == "beam:env:docker:v1"
    assert b"beam_python3.11_sdk:2.77" in environment.payload


def test_the_package_is_staged(pipeline: Any) -> None:
    from apache_beam.runners.portability.stager import Stager

    (environment,) = pipeline.components.environments.values()
    staged = {
        name: Path(path)
        for path, name, _ in Stager.extract_staging_tuple_iter(environment.dependencies)
    }
    (wheel,) = (name for name in staged if name.endswith(".whl"))
    assert staged["extra_packages.txt"].read_text() == f"{wheel}\n"
    with zipfile.ZipFile(staged[wheel]) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        requirements = archive.read(metadata).decode()
    assert "timonel/data/runners/beam_worker.py" in names
    assert "Requires-Dist: gcsfs==" in requirements
    assert "tensorflow" not in requirements
