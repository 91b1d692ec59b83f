"""Requests: JSON text to checked, typed values, in one decode; errors name the JSON path."""

from wsgi_router.schema.chat import ChatRequest, parse_chat
from wsgi_router.schema.sampling import MAX_INT32, Sampling, Streamed, StreamOptions

__all__ = ["MAX_INT32", "ChatRequest", "Sampling", "StreamOptions", "Streamed", "parse_chat"]
