"""From an input (a text, a file, token ids) to token ids and windows."""
