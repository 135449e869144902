"""`unlimiformer serve`: a page and an API on this machine."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnlimiformerError
from .console import messages, quiet_libraries
from .options import DEFAULT_MODEL, Device, Dtype, Focus, Model, Overlap, TopK, Window, fetch, load_wrapped, settings


def command(
    model: Model = DEFAULT_MODEL,
    folder: Annotated[Path | None, typer.Option(help="Where documents are kept; default: the user's cache.")] = None,
    host: Annotated[str, typer.Option(help="Anything but this machine itself needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="UNLIMIFORMER_TOKEN", help="That every request must bring, as a bearer.")
    ] = None,
    max_document_bytes: Annotated[int, typer.Option(help="Of one text.")] = 20_000_000,
    max_documents: Annotated[int, typer.Option(help="That are kept.")] = 100,
    max_question: Annotated[int, typer.Option(help="Characters.")] = 2_000,
    max_waiting: Annotated[int, typer.Option(help="Questions at once.")] = 32,
    max_seconds: Annotated[float, typer.Option(help="Of one answer.")] = 120.0,
    max_new_tokens: Annotated[int, typer.Option(help="Of one answer.")] = 256,
    beams: Annotated[int, typer.Option(help="With which short answers of an encoder–decoder are mended; 1: none.")] = 4,
    top_k: TopK = None,
    focus: Focus = None,
    window: Window = None,
    overlap: Overlap = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Drop a book on a page, ask, and see where each word of the answer came from. Documents are kept."""
    local = _is_loopback(host)
    if not local and not token:
        raise UnlimiformerError(
            f"--host is {host!r}, which other machines can reach; give a token: --token, or UNLIMIFORMER_TOKEN"
        )
    if beams < 1:
        raise UnlimiformerError(f"--beams is {beams}; expected at least 1")
    config = settings(top_k=top_k, focus=focus, window=window, overlap=overlap, dtype=dtype)
    quiet_libraries()
    try:
        import uvicorn
        from filelock import FileLock, Timeout

        from ..server import BackgroundWorker, DocumentStore, Limits, create_app
    except ImportError as error:
        raise UnlimiformerError(f"the server needs more packages ({error.name}); install unlimiformer[serve]") from None
    from ..qa import QuestionFormat
    from ..utils.files import cache_folder

    limits = Limits(max_document_bytes, max_documents, max_question, max_waiting, max_seconds, max_new_tokens)
    fetch(model)
    wrapped = load_wrapped(model, config, device)
    folder = folder or cache_folder() / "library"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except OSError as error:
        raise UnlimiformerError(f"cannot write to {folder}: {error.strerror}; give another: --folder") from None
    except Timeout:
        raise UnlimiformerError(f"another server keeps its documents in {folder}; give another: --folder") from None
    library = DocumentStore(folder)
    worker = BackgroundWorker(wrapped, QuestionFormat.for_model(model), library, limits, beams)
    app = create_app(worker, model, token, host if local else None)
    told = uvicorn.Config(app, host=host, port=port, log_level="critical", timeout_graceful_shutdown=2)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                found = self.servers[0].sockets[0].getsockname()[1]
                shown = f"[{host}]" if ":" in host else host
                messages.print(f"http://{shown}:{found}  ({len(library.documents())} documents; Ctrl-C ends)")

    try:
        Server(told).run()
    except SystemExit:
        raise UnlimiformerError(f"cannot listen on {host}, port {port}; is it in use? Give another: --port") from None
    finally:
        worker.close()
        lock.release()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
