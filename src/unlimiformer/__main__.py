"""`python -m unlimiformer` is the command line."""

from .cli.main import main

main()
