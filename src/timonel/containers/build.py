"""Build an image from a base, packages and a folder of code, and push it or write it as a layout.

    base  +  packages  +  timonel  +  code   ->  one image per platform  ->  an index for several

The layers come in the order in which they change, and unchanged ones are neither built nor uploaded
again. The same inputs give the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform as machine
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from timonel._version import __version__
from timonel.containers import packages, python_base
from timonel.containers.image import (
    CODE_FOLDER,
    digest_for,
    encode,
    image_config,
    manifest_descriptor,
    parse_config,
)
from timonel.containers.layers import Layer, LayerFile, file_at, files_below, write_layer
from timonel.containers.layout import Layout
from timonel.containers.own_requirements import OwnRequirements
from timonel.containers.publish import (
    Base,
    Place,
    open_place,
    publish_layers,
    publish_manifest,
    publish_tag,
)
from timonel.containers.requirements_files import local_digests, local_paths, read_requirements
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError, did_you_mean
from timonel.storage.atomic import aside_name, sweep, temporary_prefix, unwritable, write_json
from timonel.storage.digests import digest_bytes, digest_file, digest_lines
from timonel.storage.source_files import own_files, source_files

SELF = "self"
_ARCHITECTURES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

Progress = Callable[[str], None]
"""Takes a line about a finished step."""


_FORMAT = "2"
"""Part of the keys of cached layers; increased when the same packages make other layers."""
_UNUSED_S = 30 * 24 * 3600.0
_CACHED = re.compile(r"(base|packages|timonel)-[0-9a-f]{64}\.(tar\.zst|json)")


@dataclass(frozen=True)
class ImageSpec:
    """What goes into an image.

    Args:
        folder: Folder of the code: the files that git does not ignore, in ``/app``; None: no code.
        base: ``HOST/REPOSITORY:TAG``, ``oci:FOLDER[:TAG]``, a `BuiltImage.name`, or ``self`` for
            this machine's Python.
        requirements: Requirements or lock file; None: the packages of this environment. If it names
            ``timonel``, also with extras, their dependencies are installed.
        command: What a container runs, by default Python; of a server, its flags.
        platforms: Platforms such as ``linux/amd64``; by default this machine's.
        site_packages: Where the base's Python looks for packages; by default as in the official
            images of Python.
        environment: Further variables.
        server: Whether a container runs ``timonel-model-server``, with the ports and variables of
            TensorFlow Serving's image.
    """

    folder: Path | None
    base: str = f"python:{python_base.VERSION}-slim"
    requirements: Path | None = None
    command: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    site_packages: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    server: bool = False


@dataclass(frozen=True)
class BuiltImage:
    """A published image.

    Attributes:
        name: Its name with its digest, which always means this image.
        digest: Digest of the manifest, or of the index of several platforms.
        uploaded_bytes: Bytes of the layers that the registry or layout did not have.
        left_out: Packages of this environment that are not in the image, with the reasons.
        has_dependencies: Whether the packages include timonel's dependencies.
    """

    name: str
    digest: str
    uploaded_bytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    has_dependencies: bool = True


def build_image(
    spec: ImageSpec,
    target: str,
    *,
    plain_http: bool | None = None,
    cache: Path | None = None,
    progress: Progress = lambda _: None,
) -> BuiltImage:
    """Build an image and publish it.

    Args:
        spec: What goes into it.
        target: ``HOST/REPOSITORY:TAG``, or ``oci:FOLDER[:TAG]`` for a folder.
        plain_http: Whether registries are asked without TLS; None: only on this machine.
        cache: Folder of built layers, where unused ones are removed after 30 days; by default in
            the user's cache folder.
        progress: Called with a line after each step.

    Raises:
        SpecError: The specification is wrong.
        NotFoundError: The base does not exist.
        InputError: A registry refuses, or a layer cannot be built.
    """
    platforms = spec.platforms or (_own_platform(),)
    _check(spec, platforms)
    place = open_place(target, plain_http=plain_http)
    if (place.digest if isinstance(place, Layout) else place.reference.digest) is not None:
        raise SpecError(f"{target} is an existing image", hint="write it without the digest")
    code = None if spec.folder is None else spec.folder.resolve()
    if isinstance(place, Layout) and code and place.root.resolve().is_relative_to(code):
        raise SpecError(
            f"the image would contain {place.root}", hint="write it to a folder outside"
        )
    source = None if spec.base == SELF else open_place(spec.base, plain_http=plain_http)
    place.has_blob(digest_bytes(b""))  # an error now, not after the build
    builder = _Builder(spec, cache or _user_cache(), progress)
    uploaded = 0
    manifests, descriptors = [], []
    for platform in platforms:
        base = builder.base(source, platform)
        own = builder.layers(platform)
        layers = [*base.layers, *own]
        try:
            uploaded += publish_layers(place, base, own, progress)
        finally:
            assert own[-1].path is not None
            own[-1].path.unlink()  # the code's, which no later build uses
        config = image_config(
            platform, base.config, layers, spec.command, spec.environment, server=spec.server
        )
        manifests.append(publish_manifest(place, encode(config), layers))
        descriptors.append(manifest_descriptor(manifests[-1], platform))
    digest = publish_tag(place, manifests, descriptors)
    builder.prune_cache()
    name = place.named(digest)
    return BuiltImage(name, digest, uploaded, builder.left_out, builder.has_dependencies)


class _Builder:
    """Layers of one image, with a cache of those that were built before."""

    def __init__(self, spec: ImageSpec, cache: Path, progress: Progress) -> None:
        self._spec = spec
        self._cache = cache
        self._progress = progress
        default = f"usr/local/lib/python{python_base.VERSION}/site-packages"
        if spec.base == SELF:
            default = python_base.site_packages()
        self._place = (spec.site_packages or default).strip("/")
        self.left_out: Mapping[str, str] = {}
        path = spec.requirements
        self._requirements = () if path is None else read_requirements(path)
        self._local = local_paths(self._requirements)
        self._own = OwnRequirements.of(self._requirements)

    @property
    def has_dependencies(self) -> bool:
        return self._spec.requirements is None or self._own is not None

    def base(self, source: Place | None, platform: str) -> Base:
        """Return the layers and the configuration of the base for a platform."""
        if source is None:
            files = python_base.base_files()
            key = digest_lines(["base", *python_base.ENVIRONMENT])
            layer = self._cached(key, "base", lambda _: files)
            return Base((layer,), {"config": {"Env": list(python_base.ENVIRONMENT)}})
        manifest, _ = source.manifest()
        if "manifests" in manifest:
            manifest, _ = source.manifest(digest_for(manifest, platform, self._spec.base))
            if "manifests" in manifest:
                raise CorruptError(f"the index of the base {self._spec.base} names another index")
        config = parse_config(source.blob(manifest["config"]["digest"]), manifest, self._spec.base)
        found = f"{config.get('os')}/{config.get('architecture')}"
        if found not in {platform, "None/None"}:
            raise NotFoundError(f"the base {self._spec.base} is for {found}, not for {platform}")
        self._check_version(config)
        layers = tuple(
            Layer(
                each["digest"],
                each["size"],
                diff_id,
                each["mediaType"],
                source.path(each["digest"]) if isinstance(source, Layout) else None,
            )
            for each, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
        )
        return Base(layers, config, source)

    def layers(self, platform: str) -> list[Layer]:
        """Return the layers of packages, timonel and code."""
        spec, place = self._spec, self._place
        # Bytecode belongs to a version of Python, and contains its place.
        common = [python_base.VERSION, place, __version__, _FORMAT]
        if spec.requirements is None:
            self.left_out = packages.left_out_packages()
            key = digest_lines(["environment", *common, packages.environment_digest()])
        else:
            added = self._own.added if self._own is not None else ()
            contents = [digest_bytes(each.text.encode()) for each in self._requirements]
            contents += local_digests(self._local)
            key = digest_lines(["lock", platform, *common, *contents, *added])
        own = digest_lines(["timonel", *common, *map(digest_file, own_files().values())])
        return [
            self._cached(key, "packages", lambda folder: self._packages(folder, platform)),
            self._cached(
                own, "timonel", lambda folder: self._compiled(folder, packages.stage_timonel)
            ),
            # Other builds of the same process have their own.
            write_layer(self._code(), self._cache / aside_name("code.tar.zst")),
        ]

    def _packages(self, folder: Path, platform: str) -> Iterator[LayerFile]:
        def stage(target: Path) -> None:
            if self._spec.requirements is None:
                packages.stage_environment(target)
            else:
                packages.stage_requirements(
                    self._spec.requirements,
                    self._own,
                    target,
                    python_version=python_base.VERSION,
                    platform=platform,
                    # For wheels of a folder, uv's cache does not look at times.
                    refresh=any(path.is_dir() for path in self._local),
                )

        return self._compiled(folder, stage)

    def _compiled(self, folder: Path, stage: Callable[[Path], object]) -> Iterator[LayerFile]:
        stage(folder)
        packages.compile_bytecode(folder, self._place)
        return files_below(folder, f"{self._place}/")

    def _code(self) -> Iterator[LayerFile]:
        if (folder := self._spec.folder) is None:
            yield LayerFile(f"{CODE_FOLDER}/", mode=0o755)  # where containers start
            return
        for name in source_files(folder):
            yield file_at(folder / name, f"{CODE_FOLDER}/{name}")

    def _cached(self, key: str, what: str, files: Callable[[Path], Iterator[LayerFile]]) -> Layer:
        name = f"{what}-{key.removeprefix('sha256:')}"
        record = self._cache / f"{name}.json"
        try:
            found = json.loads(record.read_bytes())
            path = self._layer_path(what, found["digest"])
            layer = Layer(found["digest"], found["size"], found["diff_id"], path=path)
            if path.stat().st_size == layer.size:
                with contextlib.suppress(OSError):  # another user's file
                    os.utime(path)
                    os.utime(record)
                return layer
        except (OSError, ValueError, KeyError):
            pass
        # Beside the cache, so that files can be links.
        with _temporary_folder(self._cache) as folder:
            (folder / "files").mkdir()
            layer = write_layer(files(folder / "files"), folder / "layer.tar.zst")
            # Versions may differ between two builds at the same time: each keeps its own layer.
            path = (folder / "layer.tar.zst").replace(self._layer_path(what, layer.digest))
        layer = replace(layer, path=path)
        write_json(record, {"digest": layer.digest, "size": layer.size, "diff_id": layer.diff_id})
        self._progress(f"built the layer of {what}, {layer.size / 1e6:.1f} MB")
        return layer

    def _layer_path(self, what: str, digest: str) -> Path:
        return self._cache / f"{what}-{digest.removeprefix('sha256:')}.tar.zst"

    def prune_cache(self) -> None:
        """Remove layers that no build has used for 30 days, and files of killed builds."""
        sweep(self._cache)
        oldest = time.time() - _UNUSED_S
        for path in self._cache.iterdir():
            with contextlib.suppress(OSError):  # another build was faster
                if _CACHED.fullmatch(path.name) and path.stat().st_mtime < oldest:
                    path.unlink()

    def _check_version(self, config: Mapping[str, Any]) -> None:
        """Check that the base has the Python of the bytecode and of pickled functions."""
        variables = dict(
            each.partition("=")[::2] for each in config.get("config", {}).get("Env") or ()
        )
        found = variables.get("PYTHON_VERSION", python_base.VERSION)
        if ".".join(found.split(".")[:2]) != python_base.VERSION:
            raise SpecError(
                f"the base {self._spec.base} has Python {found}, this is {python_base.VERSION}",
                hint=f"use a base with Python {python_base.VERSION}",
            )


def _check(spec: ImageSpec, platforms: Sequence[str]) -> None:
    if spec.base != SELF and (hint := did_you_mean(spec.base, [SELF])):
        raise SpecError(f"no base image {spec.base!r}", hint=hint)
    if spec.folder is not None and not spec.folder.is_dir():
        raise NotFoundError(f"no folder at {spec.folder}", hint="check the path")
    if spec.requirements is not None and not spec.requirements.is_file():
        raise NotFoundError(f"no file at {spec.requirements}", hint="check the path")
    foreign = [each for each in platforms if each != _own_platform()]
    if foreign and (spec.requirements is None or spec.base == SELF):
        raise SpecError(
            f"the packages of this environment do not run on {foreign[0]}",
            hint="give --requirements, and a --base that has this platform",
        )


def _own_platform() -> str:
    try:
        return _ARCHITECTURES[machine.machine()]
    except KeyError:
        raise InputError(f"no images for {machine.machine()} can be built") from None


def _user_cache() -> Path:
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return parent / "timonel" / "layers"


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder, and remove it after the block."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=parent, prefix=temporary_prefix())
    except OSError as error:
        raise unwritable(parent, error) from error
    with folder as name:
        yield Path(name)
