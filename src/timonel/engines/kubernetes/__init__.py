"""Engines that run jobs and services on a Kubernetes cluster."""

from timonel.engines.kubernetes.engine import KubernetesEngine
from timonel.engines.kubernetes.services import KubernetesServiceEngine

__all__ = ["KubernetesEngine", "KubernetesServiceEngine"]
