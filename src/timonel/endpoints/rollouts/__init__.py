"""Rollouts: give a version more and more requests, or take them all back. Pure but for I/O."""
