"""Calls a model's own `generate` on a text of any length: wrap, generate, unwrap.

usage: wrap_any_model.py MODEL FILE     (MODEL: a name from `unlimiformer models`, a folder, or a hub id)
"""

import sys
from pathlib import Path

from unlimiformer import Unlimiformer
from unlimiformer.hub.loading import load

name, file = sys.argv[1:3]
model, tokenizer = load(name)
inputs = tokenizer(Path(file).read_text(encoding="utf-8"), return_tensors="pt")
with Unlimiformer(model, tokenizer, top_k=64):
    output_ids = model.generate(**inputs, max_new_tokens=30, num_beams=4)
sys.stdout.write(tokenizer.decode(output_ids[0], skip_special_tokens=True) + "\n")
