"""The REST skin: JSON in, JSON out."""
