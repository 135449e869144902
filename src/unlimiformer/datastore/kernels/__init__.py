"""Kernels in C for stores on a CPU: `compile` builds them, `dispatch` chooses among them, `native` calls them."""
