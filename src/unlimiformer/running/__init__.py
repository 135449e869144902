"""Many documents and many workers: every document is done once, whatever is killed on the way."""

from .documents import Document, find_documents
from .scheduling import Status, Summary, run
from .staffing import default_workers
from .work import TASKS, Work

__all__ = ["TASKS", "Document", "Status", "Summary", "Work", "default_workers", "find_documents", "run"]
