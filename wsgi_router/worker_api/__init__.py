"""The worker's side of SGLang's scheduler service: what an engine is, and the servicer in front of it."""
