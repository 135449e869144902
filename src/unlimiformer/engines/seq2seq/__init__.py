"""Encoder–decoders: every cross-attention head retrieves its own tokens from the memory at every step."""
