"""Configurations, manifests and indexes of images, as pure functions.

Follows the OCI image format specification, github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from timonel.containers.layers import LAYER_TYPE, Layer
from timonel.errors import CorruptError, NotFoundError
from timonel.storage.digests import digest_bytes, is_digest

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
CODE_FOLDER = "app"
_USER = "65532:65532"
_PORTS = ("--port=8500", "--rest_api_port=8501")
_SERVER = {
    "Entrypoint": ["python3", "-m", "timonel.serving.tfserving.command", *_PORTS],
    "ExposedPorts": {"8500/tcp": {}, "8501/tcp": {}},
}
_SERVER_ENVIRONMENT = {"MODEL_NAME": "model", "MODEL_BASE_PATH": "/models"}
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def parse_manifest(content: bytes, name: str) -> dict[str, Any]:
    """Return a manifest or an index with the fields that a build reads."""
    found = _document(content)
    entries = [found.get("config"), *_entries(found.get("layers"), {"size": int, "mediaType": str})]
    if "manifests" in found:
        entries = _entries(found["manifests"], {})
    digests = [_field(each, "digest") for each in entries]
    if not found or not all(isinstance(each, str) for each in digests):
        begin = " ".join(content[:60].decode(errors="replace").split())
        raise CorruptError(
            f"{name} is no image of the OCI or Docker format 2: got {begin!r}",
            hint="check its name, and whether a login page or an old registry answers",
        )
    for each in digests:
        if not is_digest(each):
            raise CorruptError(
                f"{name} names {each[:80]!r}, which is no SHA-256 digest",
                hint="use another base, or push this one again",
            )
    return found


def parse_config(content: bytes, manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration of an image."""
    found = _document(content)
    layers = _field(found.get("rootfs"), "diff_ids")
    if (
        not isinstance(layers, list)
        or len(layers) != len(manifest.get("layers", ()))
        or not all(map(is_digest, layers))
    ):
        raise CorruptError(
            f"the configuration of {name} does not list the layers of its manifest",
            hint="use another base, or push this one again",
        )
    return found


def _document(content: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one if the content is something else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _entries(found: Any, fields: Mapping[str, type]) -> list[Any]:
    """Return the entries of a list, None for each that lacks fields or is no object."""
    if not isinstance(found, list):
        return [None]
    return [
        each if all(isinstance(_field(each, name), kind) for name, kind in fields.items()) else None
        for each in found
    ]


def _field(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else None


def image_config(
    platform: str,
    base: Mapping[str, Any],
    layers: Sequence[Layer],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    server: bool = False,
) -> dict[str, Any]:
    """Return the configuration of an image with ``layers``, those of the base first; no times.

    A server runs as TensorFlow Serving's image does, and ``command`` has its flags.
    """
    known = base.get("config") or {}
    variables = dict(each.partition("=")[::2] for each in known.get("Env") or ())
    # Users without a home folder can write into /tmp only.
    variables |= {"HOME": "/tmp"}  # noqa: S108 - the container's
    variables |= {**(_SERVER_ENVIRONMENT if server else {}), **environment}
    system, _, architecture = platform.partition("/")
    return {
        "architecture": architecture,
        "os": system,
        "config": {
            **{name: known[name] for name in ("Labels", "StopSignal") if known.get(name)},
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "WorkingDir": f"/{CODE_FOLDER}",
            "User": _USER,
            **(_SERVER if server else {}),
            "Cmd": [*command] or ([] if server else ["python3"]),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }


def image_manifest(config: bytes, layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the manifest of an image with ``layers``, those of the base first."""
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "size": len(config), "digest": digest_bytes(config)},
        "layers": [_oci(layer) for layer in layers],
    }


def _oci(layer: Layer) -> dict[str, Any]:
    # OCI's manifests do not allow Docker's name of a layer.
    kind = layer.media_type.replace(_DOCKER_LAYER, LAYER_TYPE.replace("zstd", "gzip"))
    return {**layer.descriptor, "mediaType": kind}


def encode(content: Mapping[str, Any]) -> bytes:
    """Return JSON that is the same for equal contents."""
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def digest_for(index: Mapping[str, Any], platform: str, base: str) -> str:
    """Return the digest of the manifest of an index for a platform."""
    system, _, architecture = platform.partition("/")
    known = []
    for each in index["manifests"]:
        found = each.get("platform")
        names = _field(found, "os"), _field(found, "architecture")
        if names == (system, architecture):
            digest: str = each["digest"]
            return digest
        known.append(f"{names[0]}/{names[1]}")
    others = ", ".join(name for name in known if "unknown" not in name)
    raise NotFoundError(f"the base {base} has no image for {platform}: it has {others}")


def image_index(descriptors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the index of images for several platforms."""
    return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": list(descriptors)}


def manifest_descriptor(manifest: bytes, platform: str) -> dict[str, Any]:
    """Return the descriptor of an image's manifest."""
    system, _, architecture = platform.partition("/")
    return {
        "mediaType": MANIFEST_TYPE,
        "size": len(manifest),
        "digest": digest_bytes(manifest),
        "platform": {"architecture": architecture, "os": system},
    }
