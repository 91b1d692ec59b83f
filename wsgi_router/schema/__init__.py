"""Requests: JSON text to checked, typed values, in one decode; errors name the JSON path."""

from wsgi_router.schema.chat import MAX_INT32, ChatRequest, StreamOptions, parse_chat

__all__ = ["MAX_INT32", "ChatRequest", "StreamOptions", "parse_chat"]
