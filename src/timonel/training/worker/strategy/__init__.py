"""The strategy a job trains under: which, on which devices, with which options."""
