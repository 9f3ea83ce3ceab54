"""What `pip install bertjax` installs, used outside of a checkout and without TensorFlow."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests import environments

ROOT = pathlib.Path(__file__).parents[1]
OF_TENSORFLOW = ("tensorflow", "keras", "tfds")
SOURCES = ("bertjax", "data_pipelines", "configs")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The directory of a wheel and of an sdist."""
    root = tmp_path_factory.mktemp("archives")
    for name in (*SOURCES, *FILES):  # in the checkout lies what was built before
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copied(ROOT / name, root / name)
    code = "from setuptools import build_meta as it; it.build_wheel('.'); it.build_sdist('.')"
    environments.checked(sys.executable, "-c", code, cwd=root)
    return root


@pytest.fixture(scope="module")
def python(archives, tmp_path_factory):
    """Runs Python in an environment with bertjax's wheel and all else but TensorFlow."""
    root = tmp_path_factory.mktemp("installed")
    libraries = root / "libraries"
    libraries.mkdir()
    for path in pathlib.Path(environments.here()).iterdir():
        if not path.name.startswith((*OF_TENSORFLOW, *SOURCES)) and path.suffix != ".pth":
            (libraries / path.name).symlink_to(path)
    programs = environments.make(root / "venv", borrowed=[libraries])
    environments.install(programs, "--no-deps", *archives.glob("*.whl"))
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()

    def run(*arguments):
        return subprocess.run(
            [programs / "python", *arguments], cwd=elsewhere, env=environments.variables(),
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_an_installed_bertjax_trains_a_recipe_without_tensorflow(python, tmp_path):
    code = "import bertjax.models, importlib.util as u; print(u.find_spec('tensorflow'))"
    done = python("-c", f"{code}; print(bertjax.__file__)")
    assert done.returncode == 0, done.stderr
    tensorflow, file = done.stdout.split()
    assert tensorflow == "None" and "venv" in file and str(ROOT) not in file
    arguments = ["--config=configs/smoke.py", f"--workdir={tmp_path}"]
    done = python("-m", "bertjax.train", *arguments, "--config.phases.phase1.num_steps=2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "metrics.jsonl").exists() and (tmp_path / "checkpoints" / "2").is_dir()


@pytest.mark.slow
def test_glue_finds_its_recipe(python, tmp_path):
    directories = [f"--data={tmp_path / 'none'}", f"--workdir={tmp_path / 'run'}"]
    done = python("-m", "bertjax.glue", "--init_from=weights", *directories, "--tasks=rte")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{tmp_path / 'none' / 'RTE'} must hold the files of rte" in done.stderr


@pytest.mark.slow
def test_a_wheel_lays_no_tensorflow_over_another(archives, tmp_path):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in pathlib.Path(environments.here()).iterdir():
        if not path.name.startswith(("tensorflow_cpu", *SOURCES)) and path.suffix != ".pth":
            (libraries / path.name).symlink_to(path)
    other = libraries / "tensorflow-2.21.0.dist-info"  # an image has the full distribution
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n")
    programs = environments.make(tmp_path / "venv", borrowed=[libraries])
    program = shutil.copy(ROOT / "notebooks" / "install.py", tmp_path)
    (wheel,) = archives.glob("*.whl")
    said = environments.checked(programs / "python", program, wheel)
    assert said == "installed beside what was here: bertjax\n"
    asked = "from importlib import metadata; print(*metadata.requires('bertjax'), sep='|')"
    required = environments.checked(programs / "python", "-c", asked, cwd=tmp_path).split("|")
    assert [it for it in required if re.match("tensorflow(-cpu)?>", it)] == ["tensorflow>=2.20"]


# A wheel and an sdist with all that they ask for, in environments that hold nothing else.

OLDEST = ("jax", "flax", "optax", "orbax-checkpoint")
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
CLAIMED = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', SETUP)
assert CLAIMED is not None
MINORS = range(int(CLAIMED[1]), int(CLAIMED[2]))


def pythons():
    """Returns an interpreter for each version of Python that we claim and that is here."""
    here = [pathlib.Path(sys.executable), *pathlib.Path.home().glob(".pyenv/versions/*/bin/python")]
    by_name = [shutil.which(f"python3.{minor}") for minor in MINORS]
    found = {}
    for path in [*here, *(pathlib.Path(it) for it in by_name if it)]:
        asked = [path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
        done = subprocess.run(asked, capture_output=True, text=True)
        if done.returncode == 0 and int(done.stdout.partition(".")[2]) in MINORS:
            found.setdefault(done.stdout.strip(), path)
    return found


def oldest():
    """Returns what binds pip to the oldest JAX that setup.py claims, and what goes with it."""
    floors = {name: re.search(rf'^ +"{name}>=([\d.]+)"', SETUP, re.M)[1] for name in OLDEST}
    return "".join(f"{name}=={it}\n" for name, it in {**floors, "jaxlib": floors["jax"]}.items())


PYTHONS = pythons()
# The wheel with the newest packages and this Python: the fixture above, and the commands of README.
INSTALLS = [
    pytest.param(
        *(min(PYTHONS), "*.tar.gz", oldest()), id="sdist, oldest jax", marks=pytest.mark.weekly
    )
] + [
    pytest.param(
        *(version, "*.whl", ""), id=f"wheel, newest jax, Python {version}", marks=pytest.mark.faults
    )
    for version in PYTHONS
]


@pytest.mark.parametrize(("version", "archive", "bounds"), INSTALLS)
def test_the_quick_start_and_the_doctor_pass_from_another_folder(
    archives, tmp_path, version, archive, bounds
):
    (tmp_path / "bounds.txt").write_text(bounds)
    programs = environments.make(tmp_path / "venv", python=PYTHONS[version])
    (built,) = archives.glob(archive)
    environments.install(programs, f"--constraint={tmp_path / 'bounds.txt'}", built)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(ROOT / "launch" / "quickstart.sh", elsewhere)
    environment = environments.variables() | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        # A small text; .ci/run reads the whole documentation.
        "QUICKSTART_OPTIONS": f"--input={ROOT / 'docs'}/*.md --vocabulary_size=800 "
        "--config.phases.phase1.num_steps=20",
    }

    def said(*command):
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout
        return done.stdout

    report = said("bertjax", "doctor")
    assert report.endswith("\n0 faults\n")
    for name, _, version in (line.partition("==") for line in bounds.splitlines()):
        assert re.search(rf"^ok +{name} +{re.escape(version)}( |$)", report, re.M), report
    assert "unigram_loss" in said("bash", "quickstart.sh")
    assert (elsewhere / "quickstart" / "run" / "curves.png").stat().st_size > 10_000
