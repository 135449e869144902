"""Converters: each module turns the files of one package into a model folder, by its function `convert`."""
