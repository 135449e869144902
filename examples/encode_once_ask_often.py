"""Indexes a text once, stores the memory on disk, and generates from it several times.

usage: encode_once_ask_often.py MODEL FILE
"""

import sys
import tempfile
from pathlib import Path

from unlimiformer import Memory, Unlimiformer

model, file = sys.argv[1:3]
u = Unlimiformer.from_pretrained(model, top_k=64, dtype="int8")
with tempfile.TemporaryDirectory() as folder:
    u.index(Path(file), folder=Path(folder) / "text.memory")  # after an interruption the same call continues
    memory = Memory.load(Path(folder) / "text.memory")  # this can be another process, at any later time
    for prompt in ("The", "He", "A"):
        output = u.generate(memory, prompt=prompt, max_new_tokens=12, provenance=True)
        passage = output.provenance.passages(1)[0]
        source = " ".join(memory.text[passage.start : passage.end].split())
        sys.stdout.write(f"{output.text}  ({source!r})\n")
