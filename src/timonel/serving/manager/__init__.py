"""Model manager: load and unload versions."""
