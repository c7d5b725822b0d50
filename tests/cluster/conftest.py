"""A real cluster: the one of `KUBECONFIG`, or one that `kubelab` starts on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KUBELAB = Path(__file__).parent / "kubelab/kubelab"
_NODES = "3"


@dataclass(frozen=True)
class Cluster:
    """A cluster and a namespace of it.

    Attributes:
        kubeconfig: File with its address and credentials.
        registry: Host of a registry that the cluster pulls from.
        kubectl: The program.
        namespace: Namespace of the tests.
    """

    kubeconfig: str
    registry: str
    kubectl: str
    namespace: str

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl in the namespace and return its output."""
        done = subprocess.run(
            [self.kubectl, "--kubeconfig", self.kubeconfig, "-n", self.namespace, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, manifest: dict[str, Any]) -> None:
        self.run("apply", "-f", "-", given=json.dumps(manifest))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with a namespace of its own, in which only restricted pods may run."""
    namespace = f"timonel-test-{uuid.uuid4().hex[:8]}"
    is_own = "KUBECONFIG" not in os.environ
    if is_own:
        for command in (["build"], ["up", _NODES]):
            subprocess.run([str(KUBELAB), *command], check=True)
        home = Path(os.environ.get("KUBELAB_HOME", "/var/tmp/kubelab"))
        found = Cluster(
            str(home / "kl0/kubeconfig"), "10.200.0.2:5000", str(home / "bin/kubectl"), namespace
        )
    else:
        registry = os.environ.get("TIMONEL_TEST_REGISTRY")
        assert registry, "set TIMONEL_TEST_REGISTRY to a registry that the cluster pulls from"
        found = Cluster(os.environ["KUBECONFIG"], registry, "kubectl", namespace)
    try:
        found.run("create", "namespace", namespace)
        found.run("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield found
    finally:
        if is_own:
            subprocess.run([str(KUBELAB), "down"], check=True)
        else:
            found.run("delete", "namespace", namespace, "--wait=false")
