"""Settings of the cluster that jobs run on, from the user's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import Field

from timonel.engines.resources import Requested
from timonel.errors import SpecError, did_you_mean
from timonel.storage import Workspace
from timonel.storage.uris import shared_folder
from timonel.storage.workspace import CLAIM_VARIABLE

ServiceType = Literal["ClusterIP", "LoadBalancer"]

_PREFIX = "TIMONEL_KUBERNETES_"
_MIRRORS = "TIMONEL_MIRRORS"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CLAIM = re.compile(rf"{_NAME.pattern}:(/[^/:]+)+/?")
_USER = re.compile(r"[1-9]\d{0,9}:\d{1,10}")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"(?=.{{1,220}}\Z){_LABEL}(\.{_LABEL})*")
_GATEWAY = re.compile(rf"({_NAME.pattern}/)?{_NAME.pattern}")
_OF_USERS = frozenset({"context", "namespace"})


class ClusterSettings(Requested):
    """Settings of the cluster.

    Each field but the last is set by the environment variable ``TIMONEL_KUBERNETES_`` plus its name
    in capitals; empty values count as unset.
    """

    context: str | None = Field(
        default=None, description="Context of the kubeconfig; None: the current one, as in kubectl."
    )
    namespace: str | None = Field(
        default=None, description="Namespace of jobs; None: that of the context, or 'default'."
    )
    image: str | None = Field(
        default=None, description="Image of jobs whose specification names none."
    )
    image_pull_secret: str | None = Field(
        default=None, description="Secret with credentials of the image's registry."
    )
    service_account: str | None = Field(
        default=None,
        description="ServiceAccount of all pods, for the cloud's workload identity; None: the "
        "namespace's default one, and for the coordinator one of its own.",
    )
    secret: str | None = Field(
        default=None,
        description="Secret whose keys become environment variables of all pods, such as "
        "credentials of the workspace's bucket.",
    )
    queue: str | None = Field(
        default=None,
        description="Queue (LocalQueue of Kueue) that admits the tasks of a job, all together; "
        "None: they start without a queue.",
    )
    service_type: ServiceType | None = Field(
        default=None,
        description="How clients reach endpoints: None or ClusterIP: within the cluster; "
        "LoadBalancer: at an address of the cluster's provider.",
    )
    domain: str | None = Field(
        default=None,
        description="Domain of endpoints outside the cluster: each gets the host NAME.DOMAIN, by "
        "an Ingress or HTTPRoute; None: neither is created.",
    )
    gateway: str | None = Field(
        default=None,
        description="[NAMESPACE/]NAME of the Gateway of the HTTPRoutes; None: Ingresses.",
    )
    ingress_class: str | None = Field(
        default=None, description="Class of the Ingresses; None: the cluster's default."
    )
    claim: str | None = Field(
        default=None,
        description="NAME:PATH: claim that all pods mount at the path at which this machine has "
        "the same files; a workspace below it needs no bucket.",
    )
    user: str | None = Field(
        default=None,
        description="UID:GID of pods; None: 65532, and with a claim those of the user who submits, "
        "except root.",
    )
    mirrors: str | None = Field(
        default=None, description="Mirrors of run records, from TIMONEL_MIRRORS."
    )

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings of an environment."""
        names = cls.model_fields.keys() - {"mirrors"}
        found = {name: environ.get(_PREFIX + name.upper()) or None for name in names}
        kind = found["service_type"]
        if kind not in {None, *get_args(ServiceType)}:
            expected = get_args(ServiceType)
            raise SpecError(
                f"{_PREFIX}SERVICE_TYPE must be {' or '.join(expected)}, got {kind!r}",
                hint=did_you_mean(str(kind), expected),
            )
        _check_routes(found)
        if (claim := found["claim"]) and not _CLAIM.fullmatch(claim):
            raise _bad_claim(claim)
        if (user := found["user"]) and not _USER.fullmatch(user):
            raise SpecError(
                f"{_PREFIX}USER must be UID:GID, with a UID that is not 0, got {user!r}"
            )
        if claim and not user and os.geteuid():
            found["user"] = f"{os.geteuid()}:{os.getegid()}"
        return cls(**found, mirrors=environ.get(_MIRRORS))

    def claim_mount(self) -> tuple[str, str] | None:
        """Return the claim's name and the path at which pods mount it; None without a claim."""
        if self.claim is None:
            return None
        name, _, path = self.claim.partition(":")
        return name, path.rstrip("/")

    def sees(self, path: str | Path) -> bool:
        """Return whether pods see a path of this machine, on the claim."""
        mount = self.claim_mount()
        return mount is not None and Path(path).is_relative_to(mount[1])

    def check_visible(self, workspace: Workspace, what: str) -> None:
        """Check that pods see a workspace.

        Args:
            what: What needs it, for messages.
        """
        shared = shared_folder(workspace.uri)
        if workspace.is_remote and (shared is None or self.sees(shared)):
            return
        folder = shared or workspace.uri
        if self.sees(folder):
            raise SpecError(
                f"{what} on Kubernetes cannot use {folder}: it was created for one machine",
                hint="give --workspace another folder on the claim, to create one there",
            )
        raise SpecError(
            f"{what} on Kubernetes need a workspace in a bucket or on a claim, and {folder} is a "
            "folder that pods do not see",
            hint=f"give --workspace s3://bucket/folder, or a folder below {self._below()}",
        )

    def _below(self) -> str:
        mount = self.claim_mount()
        return f"the path of {CLAIM_VARIABLE}" + (f", {mount[1]}" if mount else "")

    def variables(self) -> dict[str, str]:
        """Return the environment variables that set these settings in a pod of the cluster."""
        fields = self.model_dump(exclude_none=True, exclude={*_OF_USERS, "mirrors"})
        return {_PREFIX + name.upper(): value for name, value in fields.items()}


def _check_routes(found: Mapping[str, str | None]) -> None:
    domain, gateway, ingress_class = (
        found[name] for name in ("domain", "gateway", "ingress_class")
    )
    for name, value, pattern, example in (
        ("DOMAIN", domain, _DOMAIN, "models.example.org"),
        ("GATEWAY", gateway, _GATEWAY, "NAME or NAMESPACE/NAME"),
        ("INGRESS_CLASS", ingress_class, _NAME, "nginx"),
    ):
        if value and not pattern.fullmatch(value):
            raise SpecError(f"{_PREFIX}{name} must be like {example}, got {value!r}")
        if value and not domain:
            raise SpecError(
                f"{_PREFIX}{name} has no effect without a domain",
                hint=f"set {_PREFIX}DOMAIN to the domain of your endpoints",
            )
    if gateway and ingress_class:
        raise SpecError(
            f"{_PREFIX}GATEWAY contradicts {_PREFIX}INGRESS_CLASS", hint="set one of them"
        )


def _bad_claim(claim: str) -> SpecError:
    """Return the error for a claim, with the part that is wrong."""
    name, separator, path = claim.partition(":")
    if not separator or not name:
        reason = "it has no name or no path"
    elif not _NAME.fullmatch(name):
        reason = f"a claim's name has only lowercase letters, digits, '-' and '.', unlike '{name}'"
    elif not path.startswith("/"):
        reason = "the path must be absolute"
    elif not path.strip("/"):
        reason = "pods cannot mount a claim at '/'"
    else:
        reason = f"the path '{path}' has ':' or an empty part"
    return SpecError(f"{CLAIM_VARIABLE} must be NAME:/PATH, got '{claim}': {reason}")
