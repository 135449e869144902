"""Decoder-only models: what is kept of a document, which blocks of it a question wants, and where they are put."""
