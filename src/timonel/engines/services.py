"""Interface of engines for services."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from timonel.engines.service_spec import AutoscalerSpec, OutsideAddress, ServiceSpec, ServiceStatus
from timonel.errors import SpecError
from timonel.storage.document_store import DocumentStore
from timonel.storage.workspace import Workspace


class ServiceEngine(abc.ABC):
    """Interface of an engine for services: apply, scale, list, logs and delete.

    Methods return when a request is recorded, not when it is fulfilled. Implementations may be
    used by several processes at once: the engine holds all state.

    Attributes:
        name: Name of the engine.
        is_one_machine: Whether all replicas run on the user's machine, so that they see its files
            and each other's sockets.
    """

    name: str
    is_one_machine: ClassVar[bool] = False

    @property
    def default_image(self) -> str | None:
        """Container image of services whose specification names none; None without containers."""
        return None

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables with settings of the engine, for services that use it."""
        return {}

    @classmethod
    @abc.abstractmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of a workspace's services."""

    @abc.abstractmethod
    def apply(self, spec: ServiceSpec) -> None:
        """Create a service or change it. Idempotent.

        A changed specification replaces the replicas one by one: an old replica stops when a new
        one is ready, so a revision that never gets ready leaves the old replicas running. Without
        `replicas`, the number of replicas does not change.

        Raises:
            SpecError: The revision was applied with other contents, or the engine cannot fulfil
                the specification.
            EngineError: The service is being deleted or does not answer, or the engine cannot start
                it.
            InputError: The engine's state cannot be written.
        """

    @abc.abstractmethod
    def scale(self, name: str, replicas: int) -> None:
        """Set the number of replicas, from 0. Idempotent.

        Replicas in excess get SIGTERM after ``stop_delay_s``, and SIGKILL after ``stop_grace_s``.

        Raises:
            NotFoundError: No such service.
            SpecError: The number is negative.
            EngineError: The service is being deleted or does not answer, or the engine cannot start
                it.
        """

    @abc.abstractmethod
    def service(self, name: str) -> ServiceStatus:
        """Return the current status of a service, without blocking.

        Raises:
            NotFoundError: No such service.
        """

    @abc.abstractmethod
    def services(self) -> list[ServiceStatus]:
        """Return the status of every service, by name; unreadable ones are skipped and logged."""

    @abc.abstractmethod
    def logs(self, name: str, replica: str, *, follow: bool = False) -> Iterator[str]:
        """Yield lines of a replica's output, oldest first.

        Args:
            name: Name of the service.
            replica: Name of the replica.
            follow: Continue until the replica is removed.

        Raises:
            NotFoundError: No such service or replica.
        """

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Request that a service stops all replicas and disappears. Idempotent while it does.

        Raises:
            NotFoundError: No such service.
            EngineError: The engine cannot stop its replicas.
        """

    @abc.abstractmethod
    def documents(self, folder: str) -> DocumentStore:
        """Return the store of documents that users and replicas of this engine share.

        Args:
            folder: Folder of the workspace, such as ``endpoints``.
        """

    def confidential(self, folder: str) -> DocumentStore | None:
        """Return a store of documents with keys of users; None if there is none.

        Users write it, and replicas that manage services read it. It is for a few documents that
        are read rarely. An engine of one machine needs none, as replicas read the user's files.

        Args:
            folder: Folder of the workspace, such as ``endpoints``.
        """
        del folder
        return None

    def leads(self, service: str) -> bool:
        """Return whether this replica is the one of its service that makes decisions.

        Replicas that call it once a second agree on one of them, within 20 s after it has ended.

        Args:
            service: Name of the service that this process is a replica of.
        """
        del service
        return True

    def preview(
        self, spec: ServiceSpec, scaling: AutoscalerSpec | None = None
    ) -> list[dict[str, Any]]:
        """Return the objects that `apply` would create in a cluster; ask it for nothing.

        Args:
            spec: The service.
            scaling: Rules for `autoscale`, whose object is returned, too.

        Raises:
            SpecError: The engine creates none.
        """
        del scaling
        raise SpecError(
            f"the engine {self.name} creates no objects for {spec.name}",
            hint="add --on kubernetes",
        )

    def close(self) -> None:
        """End what this process does in the background, and give up what it leads."""
        return

    def autoscale(self, name: str, rules: AutoscalerSpec | None) -> None:
        """Have the cluster itself scale a service; None: no longer. Idempotent.

        Raises:
            NotFoundError: No such service.
            SpecError: The engine has no cluster that scales.
            EngineError: The cluster refuses the rules, or cannot follow them.
        """
        del name
        if rules is not None:
            self.check_autoscaler(rules)

    def check_autoscaler(self, rules: AutoscalerSpec) -> None:
        """Have the cluster check rules; change nothing.

        Raises:
            SpecError: The engine has no cluster that scales.
            EngineError: The cluster refuses them.
        """
        del rules
        raise SpecError(
            "only a cluster has a HorizontalPodAutoscaler",
            hint="add --on kubernetes, or scale by requests, CPU or memory",
        )

    def expose(self, name: str, service: str, port: int, *, has_tls: bool) -> None:
        """Have a port of a service's replicas accept connections under a name. Idempotent.

        Args:
            name: Name for clients.
            service: The service.
            port: Port at which its replicas, or their sidecars, listen.
            has_tls: Whether it accepts TLS only.

        Raises:
            EngineError: The name is taken, or the engine refuses.
        """
        del name, service, port, has_tls

    def check_exposed(self, name: str, *, has_tls: bool) -> None:
        """Have the cluster check what `expose` would create; change nothing.

        Raises:
            EngineError: The cluster refuses it.
        """
        del name, has_tls

    def preview_exposed(
        self, name: str, service: str, port: int, *, has_tls: bool
    ) -> list[dict[str, Any]]:
        """Return the objects that `expose` would create in a cluster; ask it for nothing."""
        del name, service, port, has_tls
        return []

    def conceal(self, name: str) -> None:
        """End what `expose` did. Idempotent."""
        del name

    def address(self, name: str, host: str, port: int) -> str:
        """Return the address, ``host:port``, of what is exposed under a name, for its clients."""
        del name
        return f"{host}:{port}"

    def outside(self, name: str) -> OutsideAddress | None:
        """Return where a proxy of the cluster accepts requests from outside; None: nowhere."""
        del name
        return None

    def forward_command(self, name: str, port: int) -> str | None:
        """Return a command that forwards the port of this machine to what is exposed; None: none.

        Args:
            name: Name under which it is exposed.
            port: The port, there and on this machine.
        """
        del name, port
        return None
