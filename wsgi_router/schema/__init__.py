"""Requests: JSON text to checked, typed values, in one decode; errors name the JSON path."""

from wsgi_router.schema.chat import ChatRequest, parse_chat
from wsgi_router.schema.completions import CompletionRequest, parse_completion
from wsgi_router.schema.embeddings import EmbeddingRequest, parse_embedding
from wsgi_router.schema.generate import GenerateRequest, parse_generate
from wsgi_router.schema.prompts import Prompt
from wsgi_router.schema.sampling import Sampling, Streamed, StreamOptions, in_range
from wsgi_router.schema.tokenize import DetokenizeRequest, TokenizeRequest, parse_detokenize, parse_tokenize
from wsgi_router.schema.workers import NewWorker, WorkerChange, parse_new_worker, parse_worker_change

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerateRequest",
    "NewWorker",
    "Prompt",
    "Sampling",
    "StreamOptions",
    "Streamed",
    "TokenizeRequest",
    "WorkerChange",
    "in_range",
    "parse_chat",
    "parse_completion",
    "parse_detokenize",
    "parse_embedding",
    "parse_generate",
    "parse_new_worker",
    "parse_tokenize",
    "parse_worker_change",
]
