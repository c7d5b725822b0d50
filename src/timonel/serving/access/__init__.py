"""Access to a server: who may ask what, how often and how much, and over which TLS."""
