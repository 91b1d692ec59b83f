"""A router for SGLang workers: OpenAI's HTTP API in front, SGLang's gRPC protocol behind."""
