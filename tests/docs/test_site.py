"""The site is built without a warning and without anything from elsewhere; links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from timonel.cli.catalogue import ENTRIES
from timonel.tuning.ai_platform import parse_config

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_LOADED = re.compile(r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.process
def test_every_page_is_there(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")
    }
    for page in pages - {Path("index")}:
        folder = page.parent if page.name == "index" else page
        assert (site / folder / "index.html").is_file(), page


@pytest.mark.process
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = [url for url in _LOADED.findall(page.read_text()) if "rel=canonical" not in url]
        assert loaded == [], page


@pytest.mark.process
def test_the_references_are_written_from_the_code(site: Path) -> None:
    commands = (site / "reference" / "cli" / "index.html").read_text()
    for entry in ENTRIES:
        assert f"timonel {entry.name}" in commands
    python = (site / "reference" / "python" / "index.html").read_text()
    for name in ("timonel.data.convert", "timonel.training.train", "timonel.serving.serve"):
        assert f'id="{name}"' in python
    tuning_yaml = (site / "reference" / "tuning-yaml" / "index.html").read_text()
    assert all(key in tuning_yaml for key in ("maxParallelTrials", "parameterName", "scaleTier"))
    policies = (site / "reference" / "scaling-policy" / "index.html").read_text()
    assert all(key in policies for key in ("scale_down_delay_s", "lead_s", "selectPolicy"))
    for name, option in (("train", "checkpoint_steps"), ("serve", "rest_port"), ("deploy", "port")):
        assert option in (site / "reference" / name / "index.html").read_text()
    errors = (site / "reference" / "errors" / "index.html").read_text()
    assert "UserCodeError" in errors
    assert "130" in errors


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_in_the_repository_lead_somewhere(name: str) -> None:
    for target in _LINK.findall((ROOT / name).read_text()):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_demo_runs_the_commands_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    demo = runpy.run_path(str(ROOT / "scripts" / "demo.py"))
    for name in ("CONVERT", "TRAIN", "EXPORT", "SERVE"):
        assert demo[name] in readme


def test_the_example_of_a_tuning_job_is_valid() -> None:
    example = re.search(
        r'TUNING_EXAMPLE = """\n(.*?)"""', (ROOT / "docs/hooks.py").read_text(), re.DOTALL
    )
    assert example is not None
    job = parse_config(example[1])
    assert [parameter.name for parameter in job.space.parameters] == ["learning_rate", "optimizer"]
    assert job.python_module == "trainer.task"
