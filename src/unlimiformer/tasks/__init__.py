"""What models are trained and tested with: long documents, questions and answers; tasks as versioned data files."""

from .definition import Task, task, tasks
from .examples import Example, examples

__all__ = ["Example", "Task", "examples", "task", "tasks"]
