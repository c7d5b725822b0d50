from __future__ import annotations

import importlib.metadata
import re

import pytest

from timonel.containers.own_requirements import OwnRequirements


@pytest.mark.parametrize(
    "text",
    [
        "timonel",
        "keras\n  timonel[s3, kubernetes]  # comment\n",
        "timonel[s3,kubernetes] @ file:///work/timonel.whl",
        "timonel>=0.1; python_version > '3'",
    ],
)
def test_a_file_that_names_timonel_gets_its_dependencies(text: str) -> None:
    found = OwnRequirements.of(text)
    assert found is not None
    names = {re.split(r"[^a-z0-9-]", each)[0] for each in found.added}
    assert {"pydantic", "tensorflow"} <= names
    assert names & {"s3fs", "kubernetes", "mlflow"} == (
        {"s3fs", "kubernetes"} if "[" in text else set()
    )
    assert found.overrides == ('timonel; python_version < "0"',)


@pytest.mark.parametrize("text", ["", "timonel-extras", "# timonel", "my-timonel==1", "keras"])
def test_other_files_stay_as_they_are(text: str) -> None:
    assert OwnRequirements.of(text) is None


def test_the_package_without_gpus_replaces_tensorflow() -> None:
    found = OwnRequirements.of("timonel\ntensorflow-cpu==2.21.0\n")
    assert found is not None
    assert 'tensorflow; python_version < "0"' in found.overrides


def test_markers_of_extras_have_no_other_condition() -> None:
    # The condition would be dropped.
    for each in importlib.metadata.requires("timonel") or ():
        marker = each.partition(";")[2]
        assert "extra" not in marker or " and " not in marker, each
