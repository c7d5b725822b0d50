"""The control plane of a workspace's endpoints: one process."""
