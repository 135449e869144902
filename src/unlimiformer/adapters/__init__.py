"""Families of models: module names, head sizes, scaling, return tuples. One class a family, one list of all."""

from .base import Adapter, Call, CrossAttention
from .registry import ADAPTERS, adapter_for, families

__all__ = ["ADAPTERS", "Adapter", "Call", "CrossAttention", "adapter_for", "families"]
