"""Options from ``timonel.toml``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer

from tests.cli.conftest import Timonel
from timonel.cli.defaults import PROTECTIVE, VARIABLES, Defaults, read_defaults
from timonel.cli.main import app
from timonel.serving import credentials
from timonel.storage import find_workspace, workspace
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


@pytest.mark.process
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
        ("workers = 2", "workers is not in a command's table: put options under their command"),
        ("[nothing]", "unknown command nothing: it is one of init, convert"),
        ("serve = 1", "serve is not a table: write [serve]"),
        ("[serve]\nrestport = 1", "did you mean 'rest-port'?"),
        ("[serve]\npage = 'x'", "serve.page must be true or false"),
        ("[serve]\nrest-port = [1]", "serve.rest-port must be one value"),
        ("[serve]\nrest-port = 'x'", "--rest-port must be an integer, got 'x'"),
        ("x", "is not valid TOML"),
        ("workspace = 1", "workspace must be a string"),
        ("[[serve]]", "timonel.toml: [[serve]] is a list of tables: write [serve]"),
        ("serve = [1]", "timonel.toml: serve is not a table: write [serve]"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, part: str, timonel: Timonel, here: Path) -> None:
    CONFIG.write_text(text)
    outcome = timonel("serve", "digits")
    assert outcome.exit_code == 2
    assert part in outcome.error_line


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_read(timonel: Timonel, here: Path) -> None:
    os.mkfifo(CONFIG)
    outcome = timonel("runs")
    assert outcome.exit_code == 2
    assert "timonel.toml is not a regular file: remove or rename it" in outcome.error_line


def test_double_brackets_are_told(timonel: Timonel, here: Path) -> None:
    CONFIG.write_text("[[runs.list]]\nlimit = 1")
    line = timonel("runs").error_line
    assert "[[runs.list]] is a list of tables: write [runs.list]" in line


def test_a_table_of_a_noun_names_a_verb(timonel: Timonel, here: Path) -> None:
    CONFIG.write_text("[runs]\nlimit = 1")
    assert "[runs.list]" in timonel("runs").error_line
    CONFIG.write_text("[runs.lst]\nlimit = 1")
    assert "runs.lst is no command of runs: did you mean 'list'?" in timonel("runs").error_line


def test_the_workspace_of_the_environment_goes_before_that_of_the_file(
    runs: None, timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_workspace(here / "named")
    CONFIG.write_text('workspace = "work"')
    assert shown(timonel) == 3
    monkeypatch.setenv("TIMONEL_WORKSPACE", "named")
    assert shown(timonel) == 0
    assert shown(timonel, "-w", "work") == 3
    monkeypatch.setenv("TIMONEL_WORKSPACE", "")
    assert shown(timonel) == 3


@pytest.mark.parametrize(("setting", "variable"), sorted(VARIABLES.items()))
def test_a_variable_goes_before_the_file(
    setting: str, variable: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _, option = setting.rpartition(".")
    CONFIG.write_text(f"[{table}]\n{option} = 1\n" if table else f"{option} = 'work'\n")
    group = typer.main.get_command(app)
    context = typer.Context(group)
    context.invoked_subcommand = table or "runs"
    nothing = Defaults(commands={table: {}} if table else {})
    assert read_defaults(context, CONFIG, is_users=True) != nothing
    monkeypatch.setenv(variable, "2")
    assert read_defaults(context, CONFIG, is_users=True) == Defaults(
        commands={table: {}} if table else {}
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[serve]\nallow-python = ["*"]', "serve.allow-python"),
        ("[serve]\nsafe-loading = false", "serve.safe-loading"),
        ('[serve]\nhost = "0.0.0.0"', "serve.host"),
        ("[deploy]\nno-tls = true", "deploy.no-tls"),
        ('[deploy]\nrate-limit = "none"', "deploy.rate-limit"),
        ('[deploy]\nimage = "x"', "deploy.image"),
        ("[predict]\nraw = true", "predict.raw"),
        ('[predict]\ntls-ca = "ca.pem"', "predict.tls-ca"),
        ("[predict]\nallow-http = true", "predict.allow-http"),
        ("[convert]\nallow-private = true", "convert.allow-private"),
        ("[image.build]\nplain-http = true", "image.build.plain-http"),
        ("[keys.create]\nadmin = true", "keys.create.admin"),
        ('[keys.revoke]\nfile = "decoy.json"', "keys.revoke.file"),
        ('[cluster.rbac]\nuser = "mallory"', "cluster.rbac.user"),
        ("[endpoints.delete]\nyes = true", "endpoints.delete.yes"),
    ],
)
def test_a_project_cannot_weaken_protection(
    text: str, name: str, timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CONFIG.write_text(text)
    command = text[1:].partition("]")[0].split(".")
    outcome = timonel(*command, "x")
    assert outcome.exit_code == 2
    assert f"{name} must not come from the current folder: give --" in outcome.error_line
    # The user's own file may.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    (here / "config" / "timonel").mkdir(parents=True)
    CONFIG.rename(here / "config" / "timonel" / CONFIG)
    assert "must not" not in timonel(*command, "x").err


def test_options_of_batches_in_a_file_leave_single_predictions_alone(
    timonel: Timonel, here: Path
) -> None:
    CONFIG.write_text('[predict]\nformat = "csv"')
    (here / "x.csv").write_text("a\n1\n")
    assert "no workspace" in timonel("predict", "m", "x.csv").error_line
    assert "--format needs --batch" in timonel("predict", "m", "x.csv", "--format", "csv").err


def test_every_protective_option_exists() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    found: set[str] = set()

    def walk(command: object) -> None:
        for name in getattr(command, "commands", {}):
            walk(command.get_command(context, name))  # type: ignore[attr-defined]
        for word in (word for param in command.params for word in param.opts):  # type: ignore[attr-defined]
            found.update([word.removeprefix("--"), f"{command.name}.{word.removeprefix('--')}"])  # type: ignore[attr-defined]

    for name in group.list_commands(context):
        walk(group.get_command(context, name))
    assert found >= PROTECTIVE


def test_a_parameter_of_the_script_may_have_any_name(timonel: Timonel, here: Path) -> None:
    CONFIG.write_text('[train]\nset = { host = "x", hooks = 1 }')
    assert "no script at" in timonel("train", "none.py").error_line


def test_the_projects_file_goes_before_the_users(
    runs: None, timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here))
    (here / "timonel").mkdir()
    own = here / "timonel" / CONFIG
    own.write_text('workspace = "work"\n[runs.list]\nlimit = 1\n')
    assert shown(timonel) == 1
    CONFIG.write_text("[runs.list]\nlimit = 2\n")
    assert shown(timonel) == 2


def test_a_file_that_all_can_write_is_refused(timonel: Timonel, here: Path) -> None:
    CONFIG.write_text("[runs.list]\nlimit = 1\n")
    CONFIG.chmod(0o666)
    outcome = timonel("runs")
    assert outcome.exit_code == 2
    assert "all users can write timonel.toml: remove it, or make it yours" in outcome.error_line


def test_a_link_is_not_followed_in_a_project(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").write_text("[runs.list]\nlimit = 1\n")
    CONFIG.symlink_to(here / "other")
    assert "timonel.toml is a link: copy the file instead" in timonel("runs").error_line
    # The user's own may be kept elsewhere; in its folder it is not a project's.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    (here / "config" / "timonel").mkdir(parents=True)
    CONFIG.rename(here / "config" / "timonel" / CONFIG)
    (here / "other").write_text("[serve]\nsafe-loading = false\n")
    monkeypatch.chdir(here / "config" / "timonel")
    assert "must not" not in timonel("serve", "x").error_line


def test_a_named_workspace_of_a_project_must_be_the_users(runs: None, timonel: Timonel) -> None:
    CONFIG.write_text('workspace = "work"\n')
    assert shown(timonel) == 3
    Path("work").chmod(0o777)
    line = timonel("runs").error_line
    assert "all users can write" in line
    assert "name it: --workspace work" in line
    assert shown(timonel, "-w", "work") == 3


def test_the_variables_are_those_that_are_read() -> None:
    assert {"TIMONEL_WORKSPACE", "TIMONEL_API_KEY", "TIMONEL_TLS_CA"} == {
        workspace.ENVIRONMENT_VARIABLE, credentials.KEY_VARIABLE, credentials.CA_VARIABLE
    } <= set(VARIABLES.values())  # fmt: skip
