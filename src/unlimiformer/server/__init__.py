"""HTTP server: indexes documents in the background, streams answers, and shows which passages they came from."""

from .app import create_app
from .documents import DocumentStore, StoredDocument
from .limits import Limits
from .worker import BackgroundWorker

__all__ = ["BackgroundWorker", "DocumentStore", "Limits", "StoredDocument", "create_app"]
