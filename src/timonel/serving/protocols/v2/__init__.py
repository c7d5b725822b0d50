"""The Open Inference Protocol, V2: REST and gRPC as KServe, Triton and Seldon speak it."""
