"""Engine that runs jobs on a Kubernetes cluster."""
