"""One memory, kept on disk, asked several times.

usage: encode_once_ask_often.py MODEL FILE
"""

import sys
import tempfile
from pathlib import Path

from unlimiformer import Memory, Unlimiformer

name, file = sys.argv[1:3]
u = Unlimiformer.from_pretrained(name, top_k=64, dtype="int8")
with tempfile.TemporaryDirectory() as folder:
    u.index(Path(file), folder=Path(folder) / "text.memory")  # interrupted, it would go on where it stopped
    memory = Memory.load(Path(folder) / "text.memory")  # in another process, another year
    for start in ("The", "He", "A"):
        out = u.generate(memory, prompt=start, max_new_tokens=12, provenance=True)
        passage = out.provenance.passages(1)[0]
        sys.stdout.write(f"{out.text}  ({' '.join(memory.text[passage.start : passage.end].split())!r})\n")
