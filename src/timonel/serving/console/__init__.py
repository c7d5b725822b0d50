"""Web page and OpenAPI document of a server."""
