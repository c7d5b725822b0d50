"""What a tool makes of the server's own description: schemathesis, over REST.

It has an environment of its own, made by `make test-soak-serving`, and is found by the variable
``TIMONEL_SCHEMATHESIS``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.serving.hardening.harness import Usage, once, publish, serving, settled
from tests.serving.hardening.page import note

TOOL = shutil.which(os.environ.get("TIMONEL_SCHEMATHESIS", "schemathesis"))

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        TOOL is None, reason="schemathesis is not installed; see make test-soak-serving"
    ),
]

EXAMPLES, SECONDS = 100, 120
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
"""The model refuses with the client's errors only, so each 5xx is the server's own.

Answers are held against their schemas by tests of the document: schemathesis 4.32 rewrites
``prefixItems``, which answers to Classify have, into what JSON Schema does not have any more.
"""


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_what_the_description_offers_is_answered_as_it_says(workspace, tmp_path, isolation):
    publish(workspace.models / "m", 1)
    with serving(workspace, "m", isolation=isolation) as server:
        assert once(server) == ("OK", 1.0)
        before = Usage.of(server)
        done = subprocess.run(
            [
                os.path.abspath(TOOL),  # noqa: PTH100 - a link must stay one
                "run",
                f"{server.rest_url}/openapi.json",
                "--phases=examples,coverage,fuzzing",
                f"--checks={','.join(CHECKS)}",
                f"--max-examples={EXAMPLES}",
                f"--max-time={SECONDS}",
                "--generation-deterministic",
                "--no-color",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
        after = settled(server, before)
        assert once(server) == ("OK", 1.0)
    asked = int(re.search(r"(\d+) generated, \1 passed", done.stdout)[1])
    assert asked > 100
    assert after.mib < before.mib + 40, (before, after)
    assert after.descriptors <= before.descriptors + 2
    assert after.processes == before.processes
    note(
        f"schemathesis on /openapi.json, isolation {isolation}",
        f"{asked} requests, none answered otherwise than described; {before} before, {after} after",
    )
