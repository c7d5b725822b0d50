"""Pages of endpoints, served by the control plane."""
