"""What the process in front of the models' imports: nothing of what only the other side needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys
import timonel.serving.parent, timonel.serving.protocols.v2.service
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.process
def test_a_server_imports_nothing_of_who_starts_it_nor_of_what_it_does_not_offer() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"timonel.cli", "timonel.serving.launch", "timonel.serving.client.predict"}
    assert not loaded & {"typer", "rich", "numpy.testing", "tensorflow.python"}


@pytest.mark.process
def test_a_child_process_imports_nothing_of_the_server() -> None:
    code = CODE.replace(
        "timonel.serving.parent, timonel.serving.protocols.v2.service",
        "timonel.serving.runtimes.child_process",
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "timonel.serving.runtimes.child_process" in loaded
    assert not loaded & {"psutil", "timonel.serving.server", "timonel.serving.server_records"}
