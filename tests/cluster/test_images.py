"""Images that timonel built, in a real registry, run by a real container runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from timonel.containers import ImageSpec, build_image
from timonel.errors import NotFoundError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # The registry and the nodes are in network namespaces of this machine.
    pytest.mark.enable_socket,
]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "main.py").write_text(
        "import os, numpy, timonel\n"
        "open('/tmp/writable', 'w').close()\n"
        "print(numpy.__version__, timonel.__version__, os.getuid(), os.getcwd())\n"
    )
    (folder / "requirements.txt").write_text("numpy==2.4.6\n")
    return folder


def pod(name: str, image: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def test_a_pod_runs_an_image_without_another_base(
    cluster: Cluster, code: Path, tmp_path: Path
) -> None:
    spec = ImageSpec(
        code,
        base="self",
        requirements=code / "requirements.txt",
        command=("python3", "main.py"),
    )
    target = f"{cluster.registry}/team/hello:v1"
    built = build_image(spec, target, plain_http=True, cache=tmp_path / "cache")
    again = build_image(spec, target, plain_http=True, cache=tmp_path / "other")
    assert again.digest == built.digest
    assert again.uploaded_bytes == 0
    cluster.apply(pod("hello", built.name))
    cluster.run("wait", "pod/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
    assert cluster.run("logs", "hello") == "2.4.6 0.1.0 65532 /app\n"

    # The first image is the base of a second one: its layers are mounted, and do not travel.
    (code / "main.py").write_text("print('second')\n")
    second = build_image(
        ImageSpec(
            code,
            base=target,
            requirements=code / "requirements.txt",
            command=("python3", "main.py"),
        ),
        f"{cluster.registry}/team/second:v1",
        plain_http=True,
        cache=tmp_path / "cache",
    )
    cluster.apply(pod("second", second.name))
    cluster.run("wait", "pod/second", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
    assert cluster.run("logs", "second") == "second\n"


def test_a_base_that_the_registry_does_not_have(cluster: Cluster, code: Path) -> None:
    base = f"{cluster.registry}/team/nothing:v1"
    with pytest.raises(NotFoundError, match="no image"):
        build_image(ImageSpec(code, base=base), f"{cluster.registry}/a", plain_http=True)
