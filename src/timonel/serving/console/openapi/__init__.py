"""OpenAPI document of a server, with schemas of all loaded models."""
