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
    u.index(Path(file)).save(Path(folder) / "text.memory")
    memory = Memory.load(Path(folder) / "text.memory")
    for start in ("The", "He", "A"):
        out = u.generate(memory, prompt=start, max_new_tokens=12, provenance=True)
        passage = out.provenance.passages(1)[0]
        sys.stdout.write(f"{out.text}  (characters {passage.start} to {passage.end})\n")
