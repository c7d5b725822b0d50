"""Server settings: frozen, built at the entry point, sent as JSON."""
