"""Silence notices that other libraries print when they are imported or load a model; users cannot act on them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NOISY_LOGGERS = ("torchao", "transformers", "torch", "torch.utils._pytree")


@contextmanager
def without_notices() -> Iterator[None]:
    """Show only errors of torch, torchao and transformers inside the block."""
    import torch.utils._pytree  # noqa: F401 (its logger is configured when it is imported)

    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def quiet_libraries() -> None:
    """Keep notices of other libraries out of a user's terminal."""
    warnings.filterwarnings("ignore")
    import torch.utils._pytree  # noqa: F401 (its logger is configured when it is imported)
    from transformers.utils import logging as transformers_logging

    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
