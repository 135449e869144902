"""Kernels that search and sum stored states: in C for a CPU, in Triton for a GPU, with torch elsewhere.

`choice` chooses for an array. Those in C: `compile` builds them, `dispatch` chooses an instruction set, `native` calls.
"""
