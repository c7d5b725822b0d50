from __future__ import annotations

import pytest

from timonel.endpoints.control.warm import uses_tensorflow
from timonel.endpoints.spec import EndpointSpec, Traffic
from timonel.storage import Workspace


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), True),
        (("--runtime", "auto"), True),
        (("--runtime=tensorflow",), True),
        (("--runtime", "digits=tensorflow"), True),
        (("--runtime", "litert"), False),
        (("--runtime",), False),
    ],
)
def test_arguments_decide(workspace: Workspace, args: tuple[str, ...], expected: bool) -> None:
    (workspace.models / "digits" / "1").mkdir(parents=True)
    (workspace.models / "digits" / "1" / "saved_model.pb").touch()
    traffic = Traffic(percent={1: 100})
    spec = EndpointSpec(name="digits", model="digits", traffic=traffic, port=1, server_args=args)
    assert uses_tensorflow(spec, workspace) is expected
