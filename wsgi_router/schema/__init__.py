"""Requests: JSON text to checked, typed values, in one decode; errors name the JSON path."""

from wsgi_router.schema.chat import ChatRequest, StreamOptions, in_range, parse_chat

__all__ = ["ChatRequest", "StreamOptions", "in_range", "parse_chat"]
