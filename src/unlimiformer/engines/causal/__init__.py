"""Decoder-only models: blocks of the document are selected for each question and read by the plain model."""
