"""Service engine of Kubernetes: services as Deployments of a cluster."""

from timonel.engines.kubernetes.services.engine import KubernetesServiceEngine

__all__ = ["KubernetesServiceEngine"]
