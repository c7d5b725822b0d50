"""Open Inference Protocol V2 over REST and gRPC.

KServe, Triton and Seldon support the same protocol.
"""
