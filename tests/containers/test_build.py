from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.containers.registry_server import RegistryServer
from tests.serving.manager.test_manager import publish
from timonel.containers import ImageSpec, build_image, packages, python_base
from timonel.containers.image import MANIFEST_TYPE, encode, image_index, image_manifest
from timonel.containers.layers import Layer, LayerFile, write_layer
from timonel.containers.layout import Layout
from timonel.containers.publish import publish_layers
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.storage.digests import digest_bytes
from timonel.units import format_bytes

_SITE = f"usr/local/lib/python{python_base.VERSION}/site-packages"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder of code whose requirements are one local wheel."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import tiny\n")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    write_wheel(wheel)
    (tmp_path / "requirements.txt").write_text(f"tiny @ {wheel.as_uri()}\n")
    return folder


def write_wheel(path: Path, **more: str) -> None:
    files = {
        "tiny/__init__.py": "names = {'a', 'b', 'c'}\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/RECORD": "",
        **more,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture
def spec(code: Path, tmp_path: Path) -> Callable[..., ImageSpec]:
    def make(**changes: Any) -> ImageSpec:
        base = Layout(tmp_path / "base")
        if not base.root.exists():
            write_base(base)
        given = {"base": f"oci:{base.root}", "requirements": tmp_path / "requirements.txt"}
        return ImageSpec(code, **{**given, **changes})

    return make


def write_base(
    base: Layout, version: str = python_base.VERSION, architecture: str = "amd64"
) -> tuple[bytes, Layer]:
    layer = write_layer(
        [LayerFile("etc/os-release", b"ID=test\n")], base.root.with_suffix(".layer")
    )
    config = encode(
        {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": [f"PYTHON_VERSION={version}.1", "PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }
    )
    manifest = encode(image_manifest(config, [layer]))
    base.push_layer(layer)
    base.push_bytes(config)
    base.push_tag(manifest, MANIFEST_TYPE)
    return manifest, layer


def contents(server: RegistryServer, repository: str, tag: str) -> tuple[dict[str, bytes], Any]:
    """Return the files of an image, later layers over earlier ones, and its configuration."""
    manifest = json.loads(server.manifests[repository, tag][1])
    files: dict[str, bytes] = {}
    for each in manifest["layers"]:
        blob = server.blobs[repository, each["digest"]]
        with pa.CompressedInputStream(pa.BufferReader(blob), "zstd") as stream:
            plain = pa.BufferReader(stream.read())
        with tarfile.open(fileobj=plain) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    found = archive.extractfile(member)
                    assert found is not None
                    files[member.name] = found.read()
    return files, json.loads(server.blobs[repository, manifest["config"]["digest"]])


@pytest.mark.process
def test_an_image_has_base_packages_timonel_and_code(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    built = build_image(
        spec(command=("python3", "train.py"), environment={"SEED": "1"}),
        f"{server.host}/team/app:v1",
        cache=tmp_path / "cache",
    )
    files, config = contents(server, "team/app", "v1")
    assert files["etc/os-release"] == b"ID=test\n"
    assert files["app/train.py"] == b"import tiny\n"
    assert f"{_SITE}/tiny/__init__.py" in files
    assert any(name.startswith(f"{_SITE}/tiny/__pycache__/__init__") for name in files)
    assert f"{_SITE}/timonel/__init__.py" in files
    assert not any(name.endswith(("RECORD", "direct_url.json")) for name in files)
    assert config["config"]["Cmd"] == ["python3", "train.py"]
    assert config["config"]["User"] == "65532:65532"
    assert {"SEED=1", "PATH=/bin", "HOME=/tmp"} <= set(config["config"]["Env"])
    assert built.name == f"{server.host}/team/app@{built.digest}"
    assert ("team/app", built.digest) in server.manifests


@pytest.mark.process
def test_equal_inputs_give_equal_bytes_and_only_changes_travel(
    server: RegistryServer, spec: Callable[..., ImageSpec], code: Path, tmp_path: Path
) -> None:
    target = f"{server.host}/team/app"
    lines: list[str] = []
    first = build_image(spec(), f"{target}:v1", cache=tmp_path / "cache", progress=lines.append)
    uploads = [f"uploading {format_bytes(first.uploaded_bytes)} to {server.host}"]
    assert [line for line in lines if "upload" in line] == uploads
    lines.clear()
    again = build_image(spec(), f"{target}:v2", cache=tmp_path / "other", progress=lines.append)
    assert not [line for line in lines if "upload" in line]
    assert again.digest == first.digest
    assert again.uploaded_bytes == 0
    assert not list((tmp_path / "cache").glob("*code*"))
    (code / "train.py").write_text("import tiny, sys\n")
    changed = build_image(spec(), f"{target}:v3", cache=tmp_path / "cache")
    assert changed.digest != first.digest
    assert 0 < changed.uploaded_bytes < 1000


@pytest.mark.process
def test_files_that_git_ignores_are_left_out(
    server: RegistryServer, spec: Callable[..., ImageSpec], code: Path, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    (code / ".gitignore").write_text("secret.txt\n")
    (code / "secret.txt").write_text("x")
    build_image(spec(), f"{server.host}/app", cache=tmp_path / "cache")
    files, _ = contents(server, "app", "latest")
    assert "app/train.py" in files
    assert "app/secret.txt" not in files


def base_in(server: RegistryServer, folder: Path) -> tuple[str, bytes]:
    """Put the image ``base:1`` into a registry; return the digest and the content of its layer."""
    manifest, layer = write_base(Layout(folder))
    assert layer.path is not None
    content = layer.path.read_bytes()
    config = json.loads(manifest)["config"]["digest"]
    server.blobs["base", layer.digest] = content
    server.blobs["base", config] = Layout(folder).blob(config)
    server.manifests["base", "1"] = (MANIFEST_TYPE, manifest)
    return layer.digest, content


@pytest.mark.process
def test_a_base_in_the_same_registry_is_mounted_and_another_one_copied(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    digest, content = base_in(server, tmp_path / "other")
    base = f"{server.host}/base:1"
    build_image(spec(base=base), f"{server.host}/app:v1", cache=tmp_path / "cache")
    assert ("app", digest) in server.blobs
    assert server.count(f"GET /v2/base/blobs/{digest}") == 0
    build_image(spec(base=base), f"oci:{tmp_path}/layout", cache=tmp_path / "cache")
    assert Layout(tmp_path / "layout").path(digest).read_bytes() == content


@pytest.mark.process
def test_a_base_that_the_registry_does_not_mount_is_copied(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    digest, content = base_in(server, tmp_path / "other")
    server.can_mount = False
    base = f"{server.host}/base:1"
    build_image(spec(base=base), f"{server.host}/app:v1", cache=tmp_path / "cache")
    assert server.blobs["app", digest] == content


@pytest.mark.process
def test_an_index_for_two_platforms(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    base = Layout(tmp_path / "both")
    manifests = [write_base(base, architecture=each)[0] for each in ("amd64", "arm64")]
    entries = []
    for manifest, architecture in zip(manifests, ("amd64", "arm64"), strict=True):
        found, digest = Layout(base.root).manifest(digest_bytes(manifest))
        assert found["schemaVersion"] == 2
        entries.append(
            {"digest": digest, "platform": {"os": "linux", "architecture": architecture}}
        )
    base.push_tag(encode(image_index(entries)), "application/vnd.oci.image.index.v1+json")
    platforms = ("linux/amd64", "linux/arm64")
    built = build_image(
        spec(base=f"oci:{base.root}", platforms=platforms),
        f"{server.host}/app:v1",
        cache=tmp_path / "cache",
    )
    index = json.loads(server.manifests["app", "v1"][1])
    assert [each["platform"]["architecture"] for each in index["manifests"]] == ["amd64", "arm64"]
    assert built.digest == digest_bytes(server.manifests["app", "v1"][1])
    with pytest.raises(NotFoundError, match="no image for linux/riscv64: it has linux/amd64"):
        build_image(
            spec(base=f"oci:{base.root}", platforms=("linux/riscv64",)),
            f"{server.host}/app:v1",
            cache=tmp_path / "cache",
        )


def test_a_base_with_another_python_is_refused(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    write_base(Layout(tmp_path / "old"), version="3.9")
    with pytest.raises(SpecError, match=r"has Python 3\.9\.1, this is 3\."):
        build_image(spec(base=f"oci:{tmp_path}/old"), f"{server.host}/app", cache=tmp_path / "c")
    assert server.blobs == {}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"requirements": Path("nothing.txt")}, "no file at nothing.txt"),
        ({"base": "oci:nowhere"}, "nowhere has no image"),
        ({"base": "self", "platforms": ("linux/riscv64",)}, "do not run on linux/riscv64"),
    ],
)
def test_wrong_specifications(
    server: RegistryServer, spec: Callable[..., ImageSpec], change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        build_image(spec(**change), f"{server.host}/app")
    assert server.count("PUT") == 0


def test_a_layout_in_the_folder_of_the_code_is_refused(
    spec: Callable[..., ImageSpec], code: Path
) -> None:
    with pytest.raises(SpecError, match="the image would contain"):
        build_image(spec(), f"oci:{code}/image")
    assert not (code / "image").exists()


@pytest.mark.process
def test_requirements_that_do_not_exist(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(
        f"none @ file://{tmp_path}/none-1-py3-none-any.whl\n"
    )
    with pytest.raises(InputError, match=r"cannot install .*requirements\.txt"):
        build_image(spec(), f"{server.host}/app", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert server.count("PUT") == 0


@pytest.mark.process
def test_requirements_that_name_timonel_bring_its_dependencies(
    server: RegistryServer,
    spec: Callable[..., ImageSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirements = tmp_path / "requirements.txt"
    needed = requirements.read_text().strip()
    monkeypatch.setattr(
        "timonel.containers.own_requirements.importlib.metadata.requires",
        lambda _: [f'{needed}; extra == "some"'],
    )
    requirements.write_text("timonel\n")
    without = build_image(spec(), f"{server.host}/app:v1", cache=tmp_path / "cache")
    requirements.write_text("timonel[some]\n")
    built = build_image(spec(), f"{server.host}/app:v2", cache=tmp_path / "cache")
    tiny = f"{_SITE}/tiny/__init__.py"
    assert tiny not in contents(server, "app", "v1")[0]
    assert tiny in contents(server, "app", "v2")[0]
    assert built.digest != without.digest


def test_a_registry_that_does_not_answer_is_named_before_the_build(
    spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(InputError, match="does not answer"):
            build_image(spec(), f"{host}/app", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def unpack(layer: Path, root: Path) -> None:
    with (
        pa.CompressedInputStream(pa.OSFile(str(layer)), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        archive.extractall(root, filter="tar")


@pytest.mark.process
def test_this_machines_python_runs_from_its_layer(tmp_path: Path) -> None:
    layer = write_layer(python_base.base_files(), tmp_path / "base")
    root = tmp_path / "root"
    assert layer.path is not None
    unpack(layer.path, root)
    (loader,) = [*root.glob("lib64/ld-*"), *root.glob("lib/ld-linux-*")]
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    libraries = {each for each in libraries if "python" not in each.removeprefix(str(root))}
    ran = subprocess.run(
        [
            *(loader, "--inhibit-cache", "--library-path", ":".join(sorted(libraries))),
            *(root / f"usr/local/bin/python{python_base.VERSION}", "-I", "-c"),
            "import ctypes, hashlib, sqlite3, ssl, sys, zlib; print(sys.prefix)",
        ],
        capture_output=True,
        text=True,
        env={"PYTHONHOME": str(root / "usr/local")},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.process
@pytest.mark.usefixtures("fake_runtime")
def test_a_server_image_serves_the_model_of_its_variables(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.touch()
    spec = ImageSpec(None, base="self", requirements=requirements, server=True)
    build_image(spec, f"oci:{tmp_path}/image", cache=tmp_path / "cache")
    layout = Layout(tmp_path / "image")
    manifest = layout.manifest()[0]
    config = json.loads(layout.blob(manifest["config"]["digest"]))["config"]
    assert {"MODEL_NAME=model", "MODEL_BASE_PATH=/models"} <= set(config["Env"])
    assert set(config["ExposedPorts"]) == {"8500/tcp", "8501/tcp"}
    assert config["Entrypoint"][-2:] == ["--port=8500", "--rest_api_port=8501"]
    root = tmp_path / "root"
    for layer in manifest["layers"]:
        unpack(layout.path(layer["digest"]), root)
    assert (root / config["WorkingDir"].strip("/")).is_dir()
    publish(tmp_path / "models/digits", 4)
    # Third-party packages and the fake runtime are this environment's.
    places = [root / python_base.site_packages().strip("/"), os.environ["PYTHONPATH"], *sys.path]
    environment = {
        **dict(each.split("=", 1) for each in config["Env"]),
        "PYTHONHOME": str(root / "usr/local"),
        "PYTHONPATH": ":".join(map(str, places)),
        "MODEL_NAME": "digits",
        "MODEL_BASE_PATH": str(tmp_path / "models"),
    }
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    flags = ["--port=0", f"--grpc_socket_path={tmp_path}/s", f"--rest_api_port={port}"]
    program = [root / "usr/local/bin" / config["Entrypoint"][0], *config["Entrypoint"][1:]]
    server = subprocess.Popen([*program, *flags, "--runtime=fake"], env=environment)
    try:
        assert served(port, "digits") == {"4": "AVAILABLE"}
    finally:
        server.terminate()
    assert server.wait(30) == 0


def served(port: int, model: str) -> dict[str, str]:
    """Return the states of a model's versions as soon as a server answers."""
    for _ in range(400):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/{model}") as answer:
                listed = json.load(answer)["model_version_status"]
                return {each["version"]: each["state"] for each in listed}
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError


@pytest.mark.process
def test_bytecode_does_not_depend_on_the_run(tmp_path: Path) -> None:
    source = Path(packages.__file__).parent
    for name in ("one", "two"):
        shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        packages.compile_bytecode(tmp_path / name, "opt/site")
    compiled = sorted((tmp_path / "one").rglob("*.pyc"))
    assert len(compiled) == len(list(source.glob("*.py")))
    for path in compiled:
        twin = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == twin.read_bytes()
        assert b"/opt/site/" in path.read_bytes()


def test_this_environment_without_packages_that_cannot_be_copied(tmp_path: Path) -> None:
    class Named(packages.Distribution):
        def __init__(self, name: str, texts: dict[str, str]) -> None:
            self._texts = {"METADATA": f"Name: {name}\nVersion: 1\n\n", **texts}

        def read_text(self, filename: str) -> str | None:
            return self._texts.get(filename)

        def locate_file(self, path: Any) -> Any:
            return tmp_path / "site" / path

    site = tmp_path / "site/mod"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("")
    record = "mod/__init__.py,,\nmod/__pycache__/a.pyc,,\n../../bin/mod,,\n"
    found = [
        Named("mod", {"RECORD": record}),
        Named("mine", {"direct_url.json": '{"dir_info": {"editable": true}}'}),
        Named("debian", {}),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "_distributions", lambda: iter(found))
        packages.stage_environment(tmp_path / "stage")
        patch.setattr(packages, "_distributions", lambda: iter(found))
        assert packages.left_out_packages() == {
            "mine": "installed in editable mode",
            "debian": "installed without a list of files (RECORD)",
        }
    staged = [path for path in (tmp_path / "stage").rglob("*") if path.is_file()]
    assert staged == [tmp_path / "stage/mod/__init__.py"]


def test_of_two_installations_of_a_package_the_imported_one_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, version in (("venv", 2), ("system", 1)):
        package = tmp_path / place / f"twice_installed-{version}.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text(f"Name: twice-installed\nVersion: {version}\n")
        (package / "RECORD").write_text(f"twice.py,,\n{package.name}/METADATA,,\n")
        (tmp_path / place / "twice.py").write_text(f"version = {version}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path / "venv"), str(tmp_path / "system")])
    packages.stage_environment(tmp_path / "stage")
    assert (tmp_path / "stage/twice.py").read_text() == "version = 2\n"


@pytest.mark.process
def test_the_name_of_an_image_in_a_layout_is_a_base(
    server: RegistryServer, spec: Callable[..., ImageSpec], code: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = build_image(spec(), f"oci:{tmp_path}/layout", cache=cache)
    (code / "train.py").write_text("import sys\n")
    (code / "new.py").write_text("")
    build_image(spec(), f"oci:{tmp_path}/layout", cache=cache)
    (code / "train.py").unlink()
    build_image(spec(base=first.name), f"{server.host}/app:v1", cache=cache)
    assert contents(server, "app", "v1")[0]["app/train.py"] == b"import tiny\n"
    with pytest.raises(SpecError, match="is an existing image: write it without the digest"):
        build_image(spec(), first.name, cache=cache)


@pytest.mark.process
def test_a_failed_publication_leaves_no_layer_of_code(
    spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout/blobs").touch()
    with pytest.raises(InputError, match="layout"):
        build_image(spec(), f"oci:{tmp_path}/layout", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*code*"))


@pytest.mark.process
def test_layers_that_no_build_has_used_for_a_month_are_removed(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    cache, requirements = tmp_path / "cache", tmp_path / "requirements.txt"
    (cache / "kept").mkdir(parents=True)
    (cache / "packages-mine.json").touch()
    build_image(spec(), f"{server.host}/app", cache=cache)
    unused = set(cache.glob("packages-*")) - {cache / "packages-mine.json"}
    requirements.write_text("# no packages\n")
    build_image(spec(), f"{server.host}/app", cache=cache)
    used = set(cache.iterdir()) - unused
    month_ago = time.time() - 31 * 24 * 3600
    for path in used | unused:
        os.utime(path, (month_ago, month_ago))
    build_image(spec(), f"{server.host}/app", cache=cache)
    assert set(cache.iterdir()) == used
    assert len(unused) == 2


def test_a_base_with_the_configuration_of_another_image_is_refused(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    base = Layout(tmp_path / "mixed")
    _, layer = write_base(base)
    for config in (b"[]", encode({"os": "linux", "architecture": "amd64"})):
        base.push_bytes(config)
        base.push_tag(encode(image_manifest(config, [layer])), MANIFEST_TYPE)
        with pytest.raises(CorruptError, match="does not list the layers of its manifest"):
            build_image(spec(base=f"oci:{base.root}"), f"{server.host}/app", cache=tmp_path / "c")


def test_a_base_cannot_write_files_outside_of_the_target(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    _, layer = write_base(Layout(tmp_path / "evil"))
    assert layer.path is not None
    manifest = json.loads(Layout(tmp_path / "evil").blob(Layout(tmp_path / "evil").manifest()[1]))
    manifest["layers"][0]["digest"] = "sha256:../../../planted.sh"
    Layout(tmp_path / "evil").push_tag(encode(manifest), MANIFEST_TYPE)
    (tmp_path / "planted.sh").write_text("evil")
    server.manifests["evil", "1"] = (MANIFEST_TYPE, encode(manifest))
    server.blobs["evil", manifest["config"]["digest"]] = Layout(tmp_path / "evil").blob(
        manifest["config"]["digest"]
    )
    (tmp_path / "deep/er").mkdir(parents=True)
    for base in (f"oci:{tmp_path}/evil", f"{server.host}/evil:1"):
        with pytest.raises(CorruptError, match="is no SHA-256 digest"):
            build_image(spec(base=base), f"oci:{tmp_path}/deep/er/out", cache=tmp_path / "cache")
    assert not (tmp_path / "deep/planted.sh").exists()
    assert not (tmp_path / "deep/er/planted.sh").exists()


def test_a_base_whose_index_names_an_index_is_refused(
    spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    base = Layout(tmp_path / "nested")
    inner = encode(image_index([]))
    base.push_bytes(inner)
    platform = {"os": "linux", "architecture": "amd64"}
    outer = encode(image_index([{"digest": digest_bytes(inner), "platform": platform}]))
    base.push_tag(outer, "application/vnd.oci.image.index.v1+json")
    with pytest.raises(CorruptError, match="names another index"):
        build_image(
            spec(base=f"oci:{base.root}", platforms=("linux/amd64",)),
            f"oci:{tmp_path}/out",
            cache=tmp_path / "cache",
        )


@pytest.mark.process
def test_threads_that_build_at_the_same_time_have_their_own_code(
    spec: Callable[..., ImageSpec], code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, errors = ("a", "b"), []
    cache = tmp_path / "cache"
    build_image(spec(), f"oci:{tmp_path}/first", cache=cache)
    for name in names:
        shutil.copytree(code, tmp_path / name)
        (tmp_path / name / "train.py").write_text(f"# {name * 5_000_000}\n")
    both_written = threading.Barrier(len(names))

    def wait(*args: Any) -> int:
        both_written.wait(60)
        return publish_layers(*args)

    monkeypatch.setattr("timonel.containers.build.publish_layers", wait)

    def go(name: str) -> None:
        try:
            build_image(
                replace(spec(), folder=tmp_path / name), f"oci:{tmp_path}/out-{name}", cache=cache
            )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(name,)) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert errors == []
    for name in names:
        out = Layout(tmp_path / f"out-{name}")
        for layer in out.manifest()[0]["layers"]:
            assert digest_bytes(out.path(layer["digest"]).read_bytes()) == layer["digest"]
    assert not list(cache.glob(".tmp-*"))


def test_a_cache_that_cannot_be_written(spec: Callable[..., ImageSpec], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write /dev/null/layers"):
        build_image(spec(), f"oci:{tmp_path}/out", cache=Path("/dev/null/layers"))


@pytest.mark.process
@pytest.mark.parametrize("line", ["tiny @ {wheel}", "--no-index\n--find-links {folder}\ntiny"])
def test_changed_wheels_of_the_same_name_are_installed(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path, line: str
) -> None:
    wheel = tmp_path / "wheels/tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    (tmp_path / "requirements.txt").write_text(
        line.format(wheel=wheel.as_uri(), folder=wheel.parent)
    )
    for content in ("1", "2"):
        write_wheel(wheel, **{"tiny/value.py": content})
        build_image(spec(), f"{server.host}/app:v1", cache=tmp_path / "cache")
        assert contents(server, "app", "v1")[0][f"{_SITE}/tiny/value.py"] == content.encode()


@pytest.mark.process
def test_changed_files_that_requirements_include_are_installed(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    top = tmp_path / "top.txt"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (tmp_path / "tiny-1.0-py3-none-any.whl").rename(wheels / "tiny-1.0-py3-none-any.whl")
    top.write_text(f"--no-index\n--find-links {wheels}\n-r included.txt\n")
    names = set()
    for text in ("", "tiny\n"):
        (tmp_path / "included.txt").write_text(text)
        build_image(spec(requirements=top), f"{server.host}/app:v1", cache=tmp_path / "cache")
        names.add(f"{_SITE}/tiny/__init__.py" in contents(server, "app", "v1")[0])
    assert names == {False, True}


@pytest.mark.process
def test_scripts_for_the_python_of_this_machine_are_left_out(
    server: RegistryServer, spec: Callable[..., ImageSpec], tmp_path: Path
) -> None:
    write_wheel(
        tmp_path / "tiny-1.0-py3-none-any.whl",
        **{
            "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
            "tiny-1.0.data/scripts/other": "#!python\n",
            "tiny-1.0.data/scripts/program": "\x7fELF",
        },
    )
    build_image(spec(), f"{server.host}/app:v1", cache=tmp_path / "cache")
    scripts = {
        name for name in contents(server, "app", "v1")[0] if name.startswith(f"{_SITE}/bin/")
    }
    assert scripts == {f"{_SITE}/bin/program"}


@pytest.mark.process
def test_errors_of_uv_have_no_credentials(
    spec: Callable[..., ImageSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(
        "#!/bin/sh\necho no https://ada:TOKEN@host/y.whl or https://TOKEN@host >&2; exit 2\n"
    )
    uv.chmod(0o755)
    monkeypatch.setattr(packages, "_uv", lambda: str(uv))
    with pytest.raises(InputError, match=r"no https://\*\*\*@host/y\.whl or https://\*\*\*@host"):
        build_image(spec(), f"oci:{tmp_path}/out", cache=tmp_path / "cache")
