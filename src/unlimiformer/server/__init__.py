"""A small server: documents are read in the background and kept; answers stream, and say where they came from."""

from .app import create_app
from .documents import DocumentStore, StoredDocument
from .limits import Limits
from .worker import BackgroundWorker

__all__ = ["Document", "Library", "Limits", "Worker", "create_app"]
