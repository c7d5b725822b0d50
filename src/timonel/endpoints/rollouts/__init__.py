"""Rollouts: shift requests to a version step by step, or back if it fails."""
