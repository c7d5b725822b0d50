"""What a server offers, as an OpenAPI document: every loaded model with its own schema."""
