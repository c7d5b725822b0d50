"""Settings of the cluster that jobs run on, from the user's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import Field

from timonel.engines.resources import Requested
from timonel.errors import SpecError, did_you_mean

ServiceType = Literal["ClusterIP", "LoadBalancer"]

_PREFIX = "TIMONEL_KUBERNETES_"
_MIRRORS = "TIMONEL_MIRRORS"
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
    mirrors: str | None = Field(
        default=None, description="Mirrors of run records, from TIMONEL_MIRRORS."
    )

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings of an environment.

        Raises:
            SpecError: A value is not one of those that are possible.
        """
        names = cls.model_fields.keys() - {"mirrors"}
        found = {name: environ.get(_PREFIX + name.upper()) or None for name in names}
        kind = found["service_type"]
        if kind not in {None, *get_args(ServiceType)}:
            expected = get_args(ServiceType)
            raise SpecError(
                f"{_PREFIX}SERVICE_TYPE must be {' or '.join(expected)}, got {kind!r}",
                hint=did_you_mean(str(kind), expected),
            )
        return cls(**found, mirrors=environ.get(_MIRRORS))

    def variables(self) -> dict[str, str]:
        """Return the environment variables that set these settings in a pod of the cluster."""
        fields = self.model_dump(exclude_none=True, exclude={*_OF_USERS, "mirrors"})
        return {_PREFIX + name.upper(): value for name, value in fields.items()}
