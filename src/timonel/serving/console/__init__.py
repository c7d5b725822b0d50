"""The server's web page and its OpenAPI document."""
