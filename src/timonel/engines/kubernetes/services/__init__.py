"""Services of endpoints on Kubernetes."""
