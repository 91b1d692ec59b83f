"""The worker's side of SGLang's gRPC scheduler service: what an engine is, and the servicer in front of it."""
