from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from timonel._version import __version__
from timonel.containers.own_requirements import OwnRequirements
from timonel.containers.requirements_files import RequirementsFile
from timonel.errors import SpecError


def found(text: str, constraints: str = "") -> OwnRequirements | None:
    return OwnRequirements.of(
        [
            RequirementsFile(Path("constraints.txt"), constraints, is_constraints=True),
            RequirementsFile(Path("reqs.txt"), text),
        ]
    )


def names(text: str) -> set[str]:
    """Names of the packages that a requirements file brings."""
    own = found(text)
    assert own is not None
    return {re.split(r"[^a-z0-9-]", each)[0] for each in own.added}


@pytest.mark.parametrize(
    "text",
    [
        "timonel",
        "keras\n  timonel[s3, kubernetes]  # comment\n",
        "timonel[s3,kubernetes] @ file:///work/timonel.whl",
        "timonel>=0.1; python_version > '3'",
        "Timonel[S3,Kubernetes]",
        "TIMONEL [s3,\\\n  kubernetes] \\\n  >=0.1",
        "timonel[s3]\ntimonel[kubernetes] --config-settings=a=b",
    ],
)
def test_a_file_that_names_timonel_gets_its_dependencies(text: str) -> None:
    own = found(text)
    assert own is not None
    assert {"pydantic", "tensorflow"} <= names(text)
    assert names(text) & {"s3fs", "kubernetes", "mlflow"} == (
        {"s3fs", "kubernetes"} if "[" in text else set()
    )
    assert own.overrides == ('timonel; python_version < "0"',)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "timonel-extras",
        "timonel.extras",
        "# timonel",
        "my-timonel==1",
        "keras",
        "./timonel",
        "timonel/",
        "timonel-0.1-py3-none-any.whl",
        "timonel==0.0.1; python_version < '3'",
    ],
)
def test_other_files_stay_as_they_are(text: str) -> None:
    assert found(text) is None


@pytest.mark.parametrize("extra", ["legacy-keras", "legacy_keras", "Legacy.Keras"])
def test_names_of_extras_are_normalised(extra: str) -> None:
    assert names(f"timonel[{extra}]") - names("timonel") == {"tf-keras"}


def test_unknown_extras_are_refused() -> None:
    with pytest.raises(SpecError, match=r"reqs\.txt: timonel has no extra hdfs, typo: .*s3, ten"):
        found("timonel[typo,s3,HDFS]")


@pytest.mark.parametrize("specifier", ["==0.0.1", "<0", f"!={__version__}", " (>=999)"])
def test_another_version_than_the_installed_one_is_refused(specifier: str) -> None:
    with pytest.raises(SpecError, match=rf"reqs\.txt requires .* installed timonel {__version__}:"):
        found(f"timonel[s3]{specifier}")


def test_a_hash_is_refused() -> None:
    with pytest.raises(SpecError, match="image gets the installed timonel: remove the hashes"):
        found(f"timonel=={__version__} \\\n    --hash=sha256:{'0' * 64}")


@pytest.mark.parametrize("text", ["timonel==", "timonel[s3", "timonel >=1 keras"])
def test_an_invalid_requirement_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpecError, match=r"reqs\.txt has an invalid requirement") as caught:
        found(text)
    assert "\n" not in str(caught.value)


def test_constraints_require_nothing() -> None:
    assert found("keras", "timonel==0.0.1 --hash=sha256:0") is None
    assert found("timonel", f"timonel=={__version__}\ntensorflow-cpu==2.21.0") == found("timonel")


def test_constraints_limit_a_required_timonel() -> None:
    with pytest.raises(SpecError, match=r"constraints\.txt requires timonel==0\.0\.1"):
        found("timonel", "timonel==0.0.1")


@pytest.mark.parametrize("name", ["tensorflow-cpu", "TensorFlow_CPU"])
def test_the_package_without_gpus_replaces_tensorflow(name: str) -> None:
    own = found(f"timonel\n{name}==2.21.0\n")
    assert own is not None
    assert 'tensorflow; python_version < "0"' in own.overrides


def test_markers_of_extras_have_no_other_condition() -> None:
    # The condition would be dropped.
    for each in importlib.metadata.requires("timonel") or ():
        marker = each.partition(";")[2]
        assert "extra" not in marker or " and " not in marker, each
