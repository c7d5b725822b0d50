"""The gateway: Envoy, configured by files."""
