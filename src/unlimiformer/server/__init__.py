"""Servers: index documents in the background, answer questions about them, and show which passages answers came from.

`create_app` needs FastAPI, and `create_mcp_server` the package mcp; both are imported when they are first used.
"""

from typing import Any

from .documents import DocumentStore, StoredDocument
from .limits import Limits
from .worker import BackgroundWorker

__all__ = ["BackgroundWorker", "DocumentStore", "Limits", "StoredDocument", "create_app", "create_mcp_server"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from .app import create_app

        return create_app
    if name == "create_mcp_server":
        from .mcp import create_mcp_server

        return create_mcp_server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
