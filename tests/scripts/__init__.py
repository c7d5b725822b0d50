"""Tests of what sets up environments and builds packages."""
