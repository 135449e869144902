"""Process many documents with several workers; every document gets one row, also if workers or the run are killed."""

from .documents import Document, find_documents
from .job import TASKS, Job
from .options import RunOptions
from .pool_size import default_workers
from .progress import Status, Summary
from .runner import run

__all__ = ["TASKS", "Document", "Job", "RunOptions", "Status", "Summary", "default_workers", "find_documents", "run"]
