"""Many documents and many workers: every document is done once, whatever is killed on the way."""

from .documents import Document, find_documents
from .job import TASKS, Job
from .pool_size import default_workers
from .runner import Status, Summary, run

__all__ = ["TASKS", "Document", "Status", "Summary", "Work", "default_workers", "find_documents", "run"]
