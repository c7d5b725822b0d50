"""Endpoints: models behind one address, with replicas that follow the load."""
