"""From an input (a text, a file, token ids) to tokens and windows."""
