"""Tasks for training and evaluation: examples of documents, questions and answers, defined by versioned data files."""

from .definition import Task, task, tasks
from .example import merge_answers
from .loading import Example, examples

__all__ = ["Example", "Task", "examples", "merge_answers", "task", "tasks"]
