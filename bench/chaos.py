"""Chaos: `python bench/chaos.py [--kills 1000] [--minutes 60] [--seed 1] [--only index,serve]`.

Kills commands at random moments (SIGKILL) and starts them again until they finish, kills the workers of `run`, lets
disks run full, and flips bits of finished and unfinished memories; then compares with what an undisturbed run gives.
Tiny random models and small texts; every process is forked from this one, so that a start takes no time. Writes
bench/results/chaos.json after every step; the same command continues there.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", COLUMNS="160")

from chaos_commands import COMMANDS, Inputs, Outcome
from chaos_disks import FullDisk
from chaos_flips import flip_finished, flip_unfinished
from chaos_server import Server
from warm_process import WarmProcess, command, import_slow_libraries

from unlimiformer.utils.files import folder_size

RESULTS = Path(__file__).with_name("results") / "chaos.json"
_TIMEOUT = 300  # seconds: a command that takes longer hangs
_KILLS = 6  # of one run, at most
_FLIPS = 50  # in one step
_FAILURES = 20  # that are described in the results

Counts = dict[str, int]


class Chaos:
    """Disturbs commands in a scratch folder; all that is random follows from `seed` and the number of the step."""

    def __init__(self, folder: Path, seed: int, size: float) -> None:
        self.folder, self._seed, self._flips = folder, seed, max(1, int(_FLIPS * size))
        self.inputs = Inputs(folder / "inputs", size)
        self.inputs.folder.mkdir()
        self.failures: list[str] = []
        self._references: dict[str, tuple[Outcome, float]] = {}
        self._call(self._prepare)

    def step(self, name: str, number: int) -> Counts:
        """Disturb one command once, and count what was lost or wrong."""
        generator = random.Random(f"{self._seed} {name} {number}")
        kind, _, target = name.partition(": ")
        work = self.folder / f"{name} {number}".replace(" ", "_").replace(":", "")
        work.mkdir()
        described = len(self.failures)
        steps: dict[str, Callable[[str, Path, random.Random], Counts]] = {
            "kills": self._kill_server if target == "serve" else self._kill,
            "workers": self._kill_workers,
            "full disk": self._fill_disk,
            "flips": self._flip,
        }
        counts = steps[kind](target, work, generator)
        if len(self.failures) == described:  # otherwise the files are left for inspection
            shutil.rmtree(work)
        return {"steps": 1, **counts}

    def _kill(self, name: str, work: Path, generator: random.Random) -> Counts:
        _, seconds = self._reference(name)
        killed = 0
        for _ in range(generator.randint(1, _KILLS)):
            process = self._start(name, work)
            if process.wait(generator.uniform(0, seconds)):
                break
            process.kill()
            killed += 1
        return {"kills": killed, **self._finish(name, work)}

    def _kill_server(self, name: str, work: Path, generator: random.Random) -> Counts:
        server = Server(self.inputs, work)
        if name not in self._references:
            self._references[name] = (Server(self.inputs, self.folder / "undisturbed").undisturbed(), 0.0)
        kills = generator.randint(1, _KILLS)
        for _ in range(kills):
            server.disturb(generator)
        expected, outcome = server.compare(self._references[name][0])
        return {"kills": kills, **self._compare(name, work, expected, outcome)}

    def _kill_workers(self, name: str, work: Path, generator: random.Random) -> Counts:
        import psutil

        _, seconds = self._reference(name)
        process, killed = self._start(name, work), 0
        while not process.wait(generator.uniform(0, seconds / 2)) and killed < _KILLS:
            try:
                workers = psutil.Process(process.pid).children()
                if workers:
                    generator.choice(workers).kill()
                    killed += 1
            except psutil.NoSuchProcess:
                continue
        process.wait(_TIMEOUT)
        # a document counts as failed when three workers died while processing it
        return {"kills": killed, **self._finish(name, work, ["--retry-failed"])}

    def _fill_disk(self, name: str, work: Path, generator: random.Random) -> Counts:
        self._reference(name)
        written = folder_size(self._undisturbed(name)) - folder_size(self.inputs.folder / "cache")
        counts = {"refused": 0, "tracebacks": 0}
        with FullDisk(work / "disk") as disk:
            shutil.copytree(self.inputs.folder / "cache", disk.folder / "cache")
            for _ in range(generator.randint(1, 3)):
                limit = disk.fill(generator.randrange(written))
                process = self._start(name, disk.folder, log=work / "log", before=limit)
                process.wait(_TIMEOUT)
                counts["refused"] += process.code != 0
                if "Traceback" in process.err:
                    counts["tracebacks"] += 1
                    self._describe(name, work, process.err)
            disk.empty()
            again = ["--retry-failed"] if name.startswith("run") else []
            return {**counts, **self._finish(name, disk.folder, again)}

    def _flip(self, name: str, work: Path, generator: random.Random) -> Counts:
        flip = {"finished": flip_finished, "unfinished": flip_unfinished}[name]
        found = json.loads(self._call(partial(flip, self.inputs, work, generator, self._flips)))
        self.failures += [f"flips of {name} memories: {missed}" for missed in found["missed"]]
        return {"flips": self._flips, "found": self._flips - len(found["missed"])}

    def _reference(self, name: str) -> tuple[Outcome, float]:
        """The outcome of an undisturbed run, and how long it takes."""
        if name not in self._references:
            work = self._undisturbed(name)
            work.mkdir()
            started = time.monotonic()
            process = self._start(name, work)
            process.wait(_TIMEOUT)
            assert process.code == 0, process.err
            self._references[name] = COMMANDS[name].outcome(work, process.out), time.monotonic() - started
        return self._references[name]

    def _undisturbed(self, name: str) -> Path:
        return self.folder / f"undisturbed_{name.replace(' ', '_')}"

    def _finish(self, name: str, work: Path, more: list[str] | None = None) -> Counts:
        """Run a command until it has finished, and compare."""
        process = self._start(name, work, more)
        ended = process.wait(_TIMEOUT)
        if not ended:
            process.kill()
        expected, _ = self._reference(name)
        outcome = COMMANDS[name].outcome(work, process.out) if process.code == 0 else {}
        return self._compare(name, work, expected, outcome, process.err)

    def _compare(self, name: str, work: Path, expected: Outcome, outcome: Outcome, err: str = "") -> Counts:
        lost = sorted(expected.keys() - outcome.keys())
        wrong = sorted(key for key, value in outcome.items() if expected.get(key) != value)
        if lost or wrong:
            self._describe(name, work, f"lost {lost[:3]}, wrong {wrong[:3]}, {err[-300:]}")
        return {"lost": len(lost), "wrong": len(wrong)}

    def _describe(self, name: str, work: Path, text: str) -> None:
        self.failures.append(f"{name} in {work.name}: {' '.join(text.split())[-600:]}")

    def _start(
        self,
        name: str,
        work: Path,
        more: list[str] | None = None,
        log: Path | None = None,
        before: Callable[[], None] | None = None,
    ) -> WarmProcess:
        """Start a command with a cache of its own that has the compiled kernels; `before` is called in its process."""
        cache = work / "cache"
        if not cache.exists():
            shutil.copytree(self.inputs.folder / "cache", cache)
        run = command([*COMMANDS[name].arguments(self.inputs, work), *(more or [])], cache, before)
        return WarmProcess(run, log or work / "log")

    def _prepare(self) -> None:
        from unlimiformer.datastore.kernels.library import library

        os.environ["UNLIMIFORMER_CACHE"] = str(self.inputs.folder / "cache")
        self.inputs.write()
        library()
        (self.inputs.folder / "cache").mkdir(exist_ok=True)

    def _call(self, function: Callable[[], object]) -> str:
        """Call a function in another process and return what it printed."""
        process = WarmProcess(function, self.folder / "call")
        process.wait(_TIMEOUT)
        assert process.code == 0, process.err
        return process.out


def steps(only: list[str]) -> list[str]:
    """All kinds of steps, or those that have one of these words in their name."""
    names = [f"kills: {name}" for name in (*COMMANDS, "serve")]
    names += ["workers: run", "workers: run index"]
    names += [f"full disk: {name}" for name in COMMANDS if name != "train"]  # transformers writes its checkpoints
    names += ["flips: finished", "flips: unfinished"]
    return [name for name in names if not only or any(word in name for word in only)]


def next_step(names: list[str], counts: dict[str, Counts], kills: int) -> str | None:
    """The step that comes next, so that all commands get an equal share of the kills; None at the end."""

    def share(name: str) -> float:
        done = counts.get(name, {})
        killed = [name for name in names if name.startswith("kills")]
        if name.startswith("kills"):
            return done.get("kills", 0) / max(1, kills / len(killed))
        return done.get("steps", 0) / max(1, kills / 40)  # 25 steps of everything else for 1,000 kills

    name = min(names, key=share)
    return name if share(name) < 1 else None


def main() -> None:
    """Continue until there were enough kills or the time is over; print and store the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills of all commands together")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=float, default=1.0, help="share of the usual length of the texts")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="words of the steps' names")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = {"seed": arguments.seed, "steps": {}, "failures": []}
    if arguments.output.exists():
        stored = json.loads(arguments.output.read_text())
        results = stored if stored["seed"] == arguments.seed else results
    names, end = steps(arguments.only), time.monotonic() + 60 * arguments.minutes
    if next_step(names, results["steps"], arguments.kills):
        import_slow_libraries()
        folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        chaos = Chaos(folder, arguments.seed, arguments.size)
        while time.monotonic() < end and (name := next_step(names, results["steps"], arguments.kills)):
            _add_step(results, name, chaos)
            part = arguments.output.with_suffix(".part")
            part.write_text(json.dumps(results, indent=1) + "\n")
            part.replace(arguments.output)
        if chaos.failures:
            raise SystemExit(f"something was lost or wrong: see {arguments.output}; the files are in {folder}")
        shutil.rmtree(folder)
    print(json.dumps(results, indent=1))


def _add_step(results: dict, name: str, chaos: Chaos) -> None:
    """Do one step and add its counts."""
    known = len(chaos.failures)
    done = results["steps"].setdefault(name, {})
    for key, count in chaos.step(name, done.get("steps", 0)).items():
        done[key] = done.get(key, 0) + count
    results["failures"] = (results["failures"] + chaos.failures[known:])[:_FAILURES]


if __name__ == "__main__":
    main()
