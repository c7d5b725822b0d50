"""Engine that runs jobs on a Kubernetes cluster."""

from timonel.engines.kubernetes.engine import KubernetesEngine

__all__ = ["KubernetesEngine"]
