"""Kubeflow's job manifests as training jobs."""
