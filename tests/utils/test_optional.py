"""A missing optional package is named, with the extra that installs it."""

from __future__ import annotations

import sys

import pytest
import torch

from unlimiformer.datastore import ExactStore, build
from unlimiformer.errors import MissingPackageError
from unlimiformer.utils.plotting import pyplot


def test_plotting_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"drawing a plot needs the package 'matplotlib'.*\[evaluate\]"):
        pyplot()


def test_faiss_store_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackageError, match=r"the store \"faiss\" needs the package 'faiss'.*\[faiss\]"):
        build("faiss", ExactStore(torch.ones(4, 8)), torch.ones(4, 8), k=2, recall=0.9)
