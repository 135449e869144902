"""`unlimiformer serve`: the page and the HTTP API, by default for this machine only."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError, StorageError
from ..utils.optional import require
from .console import messages, quiet_libraries
from .loading import load_wrapped, make_config
from .options import DEFAULT_MODEL, Device, Model, config_options, require_at_least


@config_options(
    "top_k", "focus", "window", "overlap", "selection", "dtype", "compute_dtype", "store", "recall", "batch_size"
)
def command(
    settings: dict[str, Any],
    model: Model = DEFAULT_MODEL,
    folder: Annotated[Path | None, typer.Option(help="Folder for the documents; default: in the user's cache.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one that others can reach needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="UNLIMIFORMER_TOKEN", help="Bearer token that API requests must carry.")
    ] = None,
    max_document_bytes: Annotated[int, typer.Option(help="Largest size of one document.")] = 20_000_000,
    max_documents: Annotated[int, typer.Option(help="Largest number of stored documents.")] = 100,
    max_question: Annotated[int, typer.Option(help="Largest number of characters in a question.")] = 2_000,
    max_connections: Annotated[int, typer.Option(help="Largest number of open connections.")] = 512,
    max_waiting: Annotated[int, typer.Option(help="Largest number of questions at the same time.")] = 128,
    max_seconds: Annotated[float, typer.Option(help="Longest time for one answer.")] = 120.0,
    max_new_tokens: Annotated[int, typer.Option(help="Largest number of tokens in one answer.")] = 256,
    num_beams: Annotated[
        int,
        typer.Option(help="Generate short answers of an encoder–decoder again with this many beams; 1: do not."),
    ] = 4,
    device: Device = None,
) -> None:
    """Serve a page and an API: add documents, ask questions, and see which passages each answer came from."""
    is_local = _is_loopback(host)
    if not is_local and not token:
        raise InputError(
            f"--host is {host!r}, which other machines can reach; give a token: --token, or UNLIMIFORMER_TOKEN"
        )
    require_at_least(1, num_beams=num_beams)
    config = make_config({"store": "auto", "compute_dtype": "auto", **settings})
    quiet_libraries()
    for module in ("fastapi", "fastapi_offline", "uvicorn", "python_multipart"):
        require(module, "serve", "the server")
    from ..qa import QuestionFormat
    from ..server import BackgroundWorker, DocumentStore, Limits, create_app
    from ..utils.files import cache_folder

    limits = Limits(
        document_bytes=max_document_bytes,
        documents=max_documents,
        question=max_question,
        connections=max_connections,
        waiting=max_waiting,
        seconds=max_seconds,
        new_tokens=max_new_tokens,
    )
    wrapped = load_wrapped(model, config, device)
    folder = folder or cache_folder() / "library"
    with lock_folder(folder):
        documents = DocumentStore(folder)
        worker = BackgroundWorker(wrapped, QuestionFormat.for_model(model), documents, limits, beams=num_beams)
        try:
            app = create_app(worker, model, token, host if is_local else None)
            _run(app, host, port, limits.connections, f"({len(documents.all())} documents; stop with Ctrl-C)")
        finally:
            worker.close()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder and make sure that no other server uses it."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:  # before OSError, of which it is a subclass
        raise StorageError(
            f"another server is using {folder} for its documents; choose another folder: --folder"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror}; choose another folder: --folder") from None
    try:
        yield
    finally:
        lock.release()


def _run(app: Any, host: str, port: int, connections: int, note: str) -> None:
    """Serve until interrupted; print the address, followed by a note, once the port is open."""
    import uvicorn

    from ..server.connections import make_server_config

    class Server(uvicorn.Server):
        async def startup(self, sockets: list | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                open_port = self.servers[0].sockets[0].getsockname()[1]  # --port 0 leaves the choice to the system
                messages.print(f"http://{f'[{host}]' if ':' in host else host}:{open_port}  {note}")

    config = make_server_config(app, connections, host=host, port=port)
    try:
        Server(config).run()
    except SystemExit:
        raise InputError(
            f"cannot listen on {host}, port {port}; it may be in use: choose another port: --port"
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
