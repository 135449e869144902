"""Search kernels in C for stores on a CPU: `compile` builds them for this machine, `native` calls them."""
