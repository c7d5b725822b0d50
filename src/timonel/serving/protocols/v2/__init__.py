"""Open Inference Protocol V2: REST and gRPC, as in KServe, Triton and Seldon."""
