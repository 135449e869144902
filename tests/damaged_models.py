"""Folders of tiny models with one fault each: what a broken download, a bad disk or a hostile author leaves behind."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], None]

CONFIG, GENERATION, OURS = "config.json", "generation_config.json", "unlimiformer.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, PICKLED, GATE = "model.safetensors", "pytorch_model.bin", "memory_gate.safetensors"
INDEX = f"{WEIGHTS}.index.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_DEEP = "[" * 100_000 + "]" * 100_000


class Hostile:
    """Unpickling it leaves a mark in the folder from which Python was started."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


def put(file: str, content: str | bytes) -> Damage:
    """Replace a file."""
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: _ignore((folder / file).write_bytes(raw))


def fields(file: str, **values: Any) -> Damage:
    """Change some fields of a JSON file, which may be missing."""

    def change(folder: Path) -> None:
        path = folder / file
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **values}))

    return change


def raw_bytes(file: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the bytes of a file."""
    return lambda folder: _ignore((folder / file).write_bytes(change((folder / file).read_bytes())))


def header(change: Callable[[dict[str, Any]], Any], file: str = WEIGHTS) -> Damage:
    """Change the header of a safetensors file and leave its numbers as they are."""

    def rewrite(content: bytes) -> bytes:
        length = struct.unpack("<Q", content[:8])[0]
        entries = json.loads(content[8 : 8 + length])
        new = json.dumps(change(entries) or entries).encode()
        return struct.pack("<Q", len(new)) + new + content[8 + length :]

    return raw_bytes(file, rewrite)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any], file: str = WEIGHTS) -> Damage:
    """Change the tensors of a safetensors file."""

    def rewrite(folder: Path) -> None:
        content = load_file(folder / file)
        change(content)
        save_file(content, folder / file, {"format": "pt"})

    return rewrite


def only_pickled(content: Callable[[Path], bytes]) -> Damage:
    """Replace the weights by a pickle."""

    def replace(folder: Path) -> None:
        (folder / PICKLED).write_bytes(content(folder))
        (folder / WEIGHTS).unlink()

    return replace


def template(text: str) -> Damage:
    """Set the chat template."""
    return put("chat_template.jinja", text)


def remove(file: str) -> Damage:
    """Remove a file."""
    return lambda folder: (folder / file).unlink()


def make_folder(file: str) -> Damage:
    """Put a folder in the place of a file."""

    def replace(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        (folder / file).mkdir()

    return replace


def _first(entries: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in entries.items() if name != "__metadata__")


def _first_name(content: dict[str, torch.Tensor]) -> str:
    return min(name for name in content if "layers" in name)


def _saved(value: Any, folder: Path) -> bytes:
    path = folder / "saved"
    torch.save(value, path)
    content = path.read_bytes()
    path.unlink()
    return content


def hostile_pickle(folder: Path) -> bytes:
    """A pickle that leaves the file `was-run` next to the folder."""
    return pickle.dumps({"weight": Hostile(folder.parent / "was-run")})


def hostile_torch_file(folder: Path) -> bytes:
    """The same, as `torch.save` writes it."""
    return _saved({"weight": Hostile(folder.parent / "was-run")}, folder)


def several(*damages: Damage) -> Damage:
    """Do one after the other."""
    return lambda folder: _ignore([damage(folder) for damage in damages])


def _ignore(_: Any) -> None:
    return None


_BIG_TEMPLATE = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_GROWING_TEMPLATE = "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
_RECURSIVE_TEMPLATE = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
_LONG_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'long' * 99999999 }}"

MODEL_DAMAGE: dict[str, Damage] = {
    # weights
    "weights: empty": put(WEIGHTS, b""),
    "weights: cut in the header": raw_bytes(WEIGHTS, lambda raw: raw[:100]),
    "weights: cut in the numbers": raw_bytes(WEIGHTS, lambda raw: raw[: len(raw) // 2]),
    "weights: longer than said": raw_bytes(WEIGHTS, lambda raw: raw + b"more"),
    "weights: noise": put(WEIGHTS, bytes(range(256)) * 20),
    "weights: header of 2**63 bytes": raw_bytes(WEIGHTS, lambda raw: struct.pack("<Q", 2**63) + raw[8:]),
    "weights: header is no JSON": raw_bytes(WEIGHTS, lambda raw: raw[:8] + b"x" + raw[9:]),
    "weights: header is a list": header(lambda entries: [1, 2]),
    "weights: deep header": put(WEIGHTS, struct.pack("<Q", len(_DEEP)) + _DEEP.encode()),
    "weights: unknown dtype": header(lambda entries: _first(entries).update(dtype="F33")),
    "weights: offsets beyond the end": header(lambda entries: _first(entries).update(data_offsets=[0, 1 << 40])),
    "weights: negative offsets": header(lambda entries: _first(entries).update(data_offsets=[-8, 8])),
    "weights: shape that does not fit": header(lambda entries: _first(entries).update(shape=[3, 3])),
    "weights: shape of text": header(lambda entries: _first(entries).update(shape=["3"])),
    "weights: a tensor of another size": tensors(lambda t: t.update({_first_name(t): torch.ones(3)})),
    "weights: a scalar": tensors(lambda t: t.update({_first_name(t): torch.tensor(1.0)})),
    "weights: a missing tensor": tensors(lambda t: t.pop(_first_name(t))),
    "weights: no tensors": tensors(lambda t: t.clear()),
    "weights: not a number": tensors(lambda t: t[_first_name(t)].fill_(float("nan"))),
    "weights: a folder": make_folder(WEIGHTS),
    "weights: missing": remove(WEIGHTS),
    "index: no JSON": several(remove(WEIGHTS), put(INDEX, "{")),
    "index: a list": several(remove(WEIGHTS), put(INDEX, "[]")),
    "index: no map": several(remove(WEIGHTS), put(INDEX, "{}")),
    "index: a missing part": several(remove(WEIGHTS), fields(INDEX, metadata={}, weight_map={"a": "part.safetensors"})),
    "index: a number as a part": several(remove(WEIGHTS), fields(INDEX, metadata={}, weight_map={"a": 7})),
    # pickles
    "pickle: hostile": only_pickled(hostile_pickle),
    "pickle: hostile, by torch": only_pickled(hostile_torch_file),
    "pickle: noise": only_pickled(lambda folder: bytes(range(256)) * 20),
    "pickle: empty": only_pickled(lambda folder: b""),
    "pickle: cut": only_pickled(lambda folder: _saved(load_file(folder / WEIGHTS), folder)[:5000]),
    "pickle: a list": only_pickled(lambda folder: _saved([1, 2], folder)),
    "pickle: no tensors in it": only_pickled(lambda folder: _saved({"weight": "text"}, folder)),
    # configs
    "config: empty": put(CONFIG, ""),
    "config: no JSON": put(CONFIG, "{"),
    "config: no UTF-8": put(CONFIG, b"\xff\xfe{}"),
    "config: a list": put(CONFIG, "[]"),
    "config: null": put(CONFIG, "null"),
    "config: deep": put(CONFIG, _DEEP),
    "config: without a type": put(CONFIG, "{}"),
    "config: an unknown type": fields(CONFIG, model_type="nothing"),
    "config: a list as type": fields(CONFIG, model_type=["llama"]),
    "config: text as layers": fields(CONFIG, num_hidden_layers="three"),
    "config: negative layers": fields(CONFIG, num_hidden_layers=-1),
    "config: no layers": fields(CONFIG, num_hidden_layers=0),
    "config: a list as width": fields(CONFIG, hidden_size=[32]),
    "config: no width": fields(CONFIG, hidden_size=0),
    "config: no heads": fields(CONFIG, num_attention_heads=0),
    "config: no head of keys": fields(CONFIG, num_key_value_heads=0),
    "config: null as vocabulary": fields(CONFIG, vocab_size=None),
    "config: huge vocabulary": fields(CONFIG, vocab_size=1 << 45),
    "config: unknown activation": fields(CONFIG, hidden_act="nothing"),
    "config: unknown dtype": fields(CONFIG, dtype="float33"),
    "config: a number as dtype": fields(CONFIG, dtype=16),
    "config: a list as rotation": fields(CONFIG, rope_parameters=[1]),
    "config: unknown rotation": fields(CONFIG, rope_parameters={"rope_type": "spiral"}),
    "config: text as rotation base": fields(CONFIG, rope_parameters={"rope_type": "default", "rope_theta": "x"}),
    "config: text as epsilon": fields(CONFIG, rms_norm_eps="small"),
    "config: text as end token": fields(CONFIG, eos_token_id="end"),
    "config: text as length": fields(CONFIG, max_position_embeddings="long"),
    "config: negative length": fields(CONFIG, max_position_embeddings=-5),
    "config: text as kind": fields(CONFIG, is_encoder_decoder="yes"),
    "config: an encoder-decoder": fields(CONFIG, is_encoder_decoder=True),
    "config: a number as attention": fields(CONFIG, attn_implementation=5),
    "config: text as quantization": fields(CONFIG, quantization_config="4 bits"),
    "config: a folder": make_folder(CONFIG),
    # settings of generate
    "generation: no JSON": put(GENERATION, "{"),
    "generation: a list": put(GENERATION, "[1]"),
    "generation: deep": put(GENERATION, _DEEP),
    "generation: text as beams": fields(GENERATION, num_beams="many"),
    "generation: text as end token": fields(GENERATION, eos_token_id="end"),
    "generation: text as cache": fields(GENERATION, cache_implementation="nothing"),
    "generation: text as penalty": fields(GENERATION, repetition_penalty="high"),
    "generation: text as bad words": fields(GENERATION, bad_words_ids="none"),
    "generation: an end token beyond the vocabulary": fields(GENERATION, eos_token_id=10**30),
    # tokenizers
    "tokenizer: empty": put(TOKENIZER, ""),
    "tokenizer: no JSON": put(TOKENIZER, "{"),
    "tokenizer: a list": put(TOKENIZER, "[]"),
    "tokenizer: deep": put(TOKENIZER, _DEEP),
    "tokenizer: without a model": fields(TOKENIZER, model=None),
    "tokenizer: unknown model": fields(TOKENIZER, model={"type": "Nothing"}),
    "tokenizer: text as vocabulary": fields(TOKENIZER, model={"type": "WordLevel", "vocab": "w0", "unk_token": "w0"}),
    "tokenizer: negative ids": fields(TOKENIZER, model={"type": "WordLevel", "vocab": {"w0": -1}, "unk_token": "w0"}),
    "tokenizer: another's ids": fields(TOKENIZER, model={"type": "WordLevel", "vocab": {"w0": 999}, "unk_token": "w0"}),
    "tokenizer: a pattern that does not compile": fields(
        TOKENIZER, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Removed", "invert": False}
    ),
    "tokenizer: a table that is none": fields(
        TOKENIZER, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    ),
    "tokenizer: a token that is not there": fields(
        TOKENIZER,
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
    ),
    "tokenizer: missing": several(remove(TOKENIZER), remove(TOKENIZER_CONFIG)),
    "tokenizer config: no JSON": put(TOKENIZER_CONFIG, "{"),
    "tokenizer config: a list": put(TOKENIZER_CONFIG, "[]"),
    "tokenizer config: deep": put(TOKENIZER_CONFIG, _DEEP),
    "tokenizer config: unknown class": several(fields(TOKENIZER_CONFIG, tokenizer_class="Nothing"), remove(TOKENIZER)),
    "tokenizer config: a number as class": fields(TOKENIZER_CONFIG, tokenizer_class=5),
    "tokenizer config: a number as token": fields(TOKENIZER_CONFIG, eos_token=5),
    "tokenizer config: text as added tokens": fields(TOKENIZER_CONFIG, added_tokens_decoder="none"),
    "tokenizer config: text as length": fields(TOKENIZER_CONFIG, model_max_length="long"),
    # files of this library
    "ours: no JSON": put(OURS, "{"),
    "ours: deep": put(OURS, _DEEP),
    "ours: unknown key": put(OURS, '{"settings": {}, "colour": 1}'),
    "ours: unknown setting": put(OURS, '{"settings": {"colour": 1}}'),
    "ours: wrong type": put(OURS, '{"settings": {"top_k": "many"}}'),
    "ours: a list in a list": put(OURS, '{"settings": {"layers": [[1]]}}'),
    "ours: not a number": put(OURS, '{"settings": {"overlap": NaN}}'),
    "ours: numbers as prefix": put(OURS, '{"settings": {"prefix": [1, 2]}}'),
    "ours: unknown device": put(OURS, '{"settings": {"device": "tpu9"}}'),
    "ours: unknown place": put(OURS, '{"settings": {}, "asking": {"place": "nowhere"}}'),
    "ours: a form that reads attributes": put(
        OURS, '{"settings": {}, "asking": {"form": "{question.__class__.nothing} {question}"}}'
    ),
    "ours: a form without end": put(OURS, '{"settings": {}, "asking": {"form": "{question:>99999999999}"}}'),
    "ours: a folder": make_folder(OURS),
    # chat templates
    "template: no jinja": template("{% for %}"),
    "template: without the message": template("Hello."),
    "template: raises": template("{{ raise_exception('no') }}"),
    "template: wrong types": template("{{ messages + 5 }}"),
    "template: leaves the sandbox": template("{{ messages.__class__.__mro__[1].__subclasses__() }}"),
    "template: recursion": template(_RECURSIVE_TEMPLATE),
    "template: loops without end": template(_BIG_TEMPLATE),
    "template: grows without end": template(_GROWING_TEMPLATE),
    "template: huge number": template("{{ 10 ** 10 ** 10 }}"),
    "template: huge output": template(_LONG_TEMPLATE),
    "template: no UTF-8": put("chat_template.jinja", b"\xff\xfe"),
    "template: a number": fields(TOKENIZER_CONFIG, chat_template=5),
    "template: a list": fields(TOKENIZER_CONFIG, chat_template=["x"]),
}
"""Faults of a decoder-only model."""

SEQ2SEQ_DAMAGE: dict[str, Damage] = {
    "gate: noise": put(GATE, b"junk" * 100),
    "gate: empty": put(GATE, b""),
    "gate: of other heads": lambda folder: save_file({"memory_gate.0": torch.ones(9)}, folder / GATE),
    "gate: of text": put(GATE, b"{}"),
    "gate: whole numbers": lambda folder: save_file({"memory_gate.0": torch.ones(4, dtype=torch.int64)}, folder / GATE),
    "gate: not a number": lambda folder: save_file({"memory_gate.0": torch.full((4,), torch.nan)}, folder / GATE),
    "gate: of no layer": lambda folder: save_file({"memory_gate.99": torch.ones(4)}, folder / GATE),
    "gate: of nothing": lambda folder: save_file({"colour": torch.ones(4)}, folder / GATE),
    "gate: a folder": make_folder(GATE),
    "config: no start token": several(
        fields(CONFIG, decoder_start_token_id=None, bos_token_id=None),
        fields(GENERATION, decoder_start_token_id=None, bos_token_id=None),
    ),
    "generation: text as start token": fields(GENERATION, decoder_start_token_id="start"),
    "config: text as layers": fields(CONFIG, num_decoder_layers="two"),
    "config: text as dropout": fields(CONFIG, dropout_rate="much"),
}
"""Faults of an encoder–decoder."""

ADAPTER_DAMAGE: dict[str, Damage] = {
    "no JSON": put(ADAPTER, "{"),
    "a list": put(ADAPTER, "[]"),
    "deep": put(ADAPTER, _DEEP),
    "no base": fields(ADAPTER, base_model_name_or_path=None),
    "a number as base": fields(ADAPTER, base_model_name_or_path=7),
    "missing base": fields(ADAPTER, base_model_name_or_path="/nothing/here"),
    "base of another kind": lambda folder: fields(ADAPTER, base_model_name_or_path=str(folder.parent / "t5"))(folder),
    "base of another size": lambda folder: fields(ADAPTER, base_model_name_or_path=str(folder.parent / "gemma2"))(
        folder
    ),
    "its own base": lambda folder: fields(ADAPTER, base_model_name_or_path=str(folder))(folder),
    "unknown type": fields(ADAPTER, peft_type="NOTHING"),
    "a list as type": fields(ADAPTER, peft_type=["LORA"]),
    "no type": fields(ADAPTER, peft_type=None),
    "learned prompts": fields(ADAPTER, peft_type="PROMPT_TUNING", num_virtual_tokens=3),
    "text as rank": fields(ADAPTER, r="four"),
    "negative rank": fields(ADAPTER, r=-4),
    "another rank": fields(ADAPTER, r=9),
    "text as scale": fields(ADAPTER, lora_alpha="high"),
    "unknown modules": fields(ADAPTER, target_modules=["nothing"]),
    "a number as modules": fields(ADAPTER, target_modules=5),
    "a pattern that does not compile": fields(ADAPTER, target_modules="(("),
    "weights missing": remove(ADAPTER_WEIGHTS),
    "weights cut": raw_bytes(ADAPTER_WEIGHTS, lambda raw: raw[: len(raw) // 2]),
    "weights of noise": put(ADAPTER_WEIGHTS, b"junk" * 99),
    "weights of another size": tensors(lambda t: t.update({min(t): torch.ones(5, 5)}), ADAPTER_WEIGHTS),
    "half of the weights": tensors(lambda t: t.pop(min(t)), ADAPTER_WEIGHTS),
    "weights of another model": tensors(lambda t: t.update(other=t.pop(min(t))), ADAPTER_WEIGHTS),
    "not a number": tensors(lambda t: t[min(t)].fill_(float("nan")), ADAPTER_WEIGHTS),
    "a hostile pickle": lambda folder: several(
        put("adapter_model.bin", hostile_torch_file(folder)), remove(ADAPTER_WEIGHTS)
    )(folder),
}
"""Faults of an adapter of peft."""
