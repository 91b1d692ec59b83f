"""A worker without a model: SGLang's protocol, scripted answers, a timing model, faults on request."""
