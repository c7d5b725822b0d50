"""Access control for a server: keys, limits of size and time, TLS, origin checks."""
