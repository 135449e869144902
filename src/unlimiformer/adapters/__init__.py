"""Adapters: what differs between model families (module names, head sizes, scaling, outputs), one class per family."""

from .base import Adapter, Call, CrossAttention
from .registry import ADAPTERS, adapter_for, families

__all__ = ["ADAPTERS", "Adapter", "Call", "CrossAttention", "adapter_for", "families"]
