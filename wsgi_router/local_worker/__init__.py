"""The embedded worker: a small real model, SmolLM2-135M-Instruct, behind SGLang's gRPC service; no GPU."""
