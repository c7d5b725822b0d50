"""Options from ``timonel.toml``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.storage import find_workspace
from timonel.tracking import start_run

CONFIG = Path("timonel.toml")


@pytest.fixture
def runs(here: Path) -> None:
    """Three runs in a workspace of another name."""
    for _ in range(3):
        with start_run(find_workspace(here / "work"), "convert"):
            pass


def shown(timonel: Timonel, *words: str) -> int:
    return len(json.loads(timonel("runs", *words, "--json").out)["runs"])


def test_options_come_from_the_file_and_the_command_line_goes_before(runs, timonel) -> None:
    CONFIG.write_text('workspace = "work"\n[runs.list]\nlimit = 1\n')
    assert shown(timonel) == 1
    assert shown(timonel, "--limit", "2") == 2
    assert "elsewhere" in timonel("runs", "-w", "elsewhere").error_line


def test_each_kind_of_option(timonel: Timonel, here: Path) -> None:
    (here / "train.py").write_text("import json, sys; json.dump(sys.argv[1:], open('argv', 'w'))")
    CONFIG.write_text(
        """
        [train]
        workers = 1
        strategy = "none"
        warm = false
        set = { lr = 0.01, shuffle = true }
        """
    )
    assert timonel("train", "train.py").exit_code == 0
    assert json.loads(Path("argv").read_text()) == ["--lr=0.01", "--shuffle=true"]
    assert timonel("train", "train.py", "--set", "lr=1").exit_code == 0
    assert json.loads(Path("argv").read_text()) == ["--lr=1"]
    record = json.loads(timonel("runs", "show", "--json").out)
    assert record["params"]["timonel.strategy"] == "none"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[serv]", "did you mean 'serve'?"),
        ("[serve]\nrestport = 1", "did you mean 'rest-port'?"),
        ("[serve]\npage = 'x'", "serve.page to be true or false"),
        ("[serve]\nrest-port = [1]", "serve.rest-port to be one value"),
        ("[serve]\nrest-port = 'x'", "'--rest-port'"),
        ("x", "is not valid TOML"),
        ("workspace = 1", "workspace is no text"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, part: str, timonel: Timonel, here: Path) -> None:
    CONFIG.write_text(text)
    outcome = timonel("serve", "digits")
    assert outcome.exit_code == 2
    assert part in outcome.error_line


def test_a_table_of_a_noun_names_a_verb(timonel: Timonel, here: Path) -> None:
    CONFIG.write_text("[runs]\nlimit = 1")
    assert "[runs.list]" in timonel("runs").error_line
