"""JSON requests and responses as arrays, shared by REST protocols and batch prediction."""
