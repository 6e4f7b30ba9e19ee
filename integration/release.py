"""``make release``: checks what `make wheel` has built, and tries it as a user would. The results are beside it, in ``dist/``.

- A second wheel, for aarch64: its helper is cross-compiled, and nothing of it is run here.
- ``twine``, ``check-wheel-contents`` and ``abi3audit`` find no fault.
- The wheel, and the source distribution with and without a C compiler, are installed into new environments. In each, the
  programs of the quick start copy a topic, and the compiled helper is there or not.
- ``SHA256SUMS``, an SBOM (CycloneDX) and a list of the dependencies' licenses.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from integration import ROOT
from integration.broker import Cluster
from integration.jars import pip_install

DIST, BUILD = ROOT / "dist", ROOT / "build"

TOOLS = ("abi3audit", "check-wheel-contents", "cyclonedx-bom", "pip-licenses", "twine", "wheel", "ziglang")

GLIBC = "2.28"
"""Of the aarch64 wheel: Debian 10, RHEL 8 and newer."""

ROWS = 500

SECONDS = 600


class Environment:
    """A virtual environment."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)

    @property
    def python(self) -> str:
        """Its Python."""
        return str(self.folder / "bin" / "python")

    def install(self, *packages: str, environment: Mapping[str, str] | None = None) -> None:
        """Install packages."""
        pip_install(*packages, python=self.python, environment=environment)

    def run(self, *words: str | Path, cwd: Path = ROOT, **variables: str) -> str:
        """Run a program of the environment; return what it prints."""
        environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")
        }
        environment |= {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": self.python}
        program, *rest = map(str, words)
        done = subprocess.run(
            [str(self.folder / "bin" / program), *rest],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**environment, **variables},
            timeout=SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{program} {' '.join(rest)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Check and try everything in ``dist/``."""
    parser = argparse.ArgumentParser(prog="python -m integration.release", description=main.__doc__)
    parser.add_argument("--python", action="append", metavar="PROGRAM", help="try the wheel with it; can be repeated")
    chosen = parser.parse_args(arguments)
    [wheel], [sdist] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    tools = Environment(BUILD / "release-tools")
    tools.install(*TOOLS)
    wheels = [wheel, wheel_for_aarch64(tools, wheel)]
    say("checked", check(tools, wheels, sdist))
    with Cluster() as cluster:
        trials = [(python, wheel, True) for python in chosen.python or [sys.executable]]
        trials += [(sys.executable, sdist, True), (sys.executable, sdist, False)]
        for number, (python, artifact, helper) in enumerate(trials):
            say("tried", try_out(Environment(BUILD / f"trial-{number}", python), artifact, helper, cluster))
    describe(tools, wheel)
    for name in sorted(os.listdir(DIST)):
        say("dist", name)


def say(what: str, text: str) -> None:
    """Print a line."""
    print(f"{what:8} {text}", flush=True)


def wheel_for_aarch64(tools: Environment, wheel: Path) -> Path:
    """Make a wheel for Linux on aarch64 out of the one for this processor."""
    with TemporaryDirectory(dir=BUILD) as scratch:
        tools.run("wheel", "unpack", "--dest", scratch, wheel)
        [tree] = Path(scratch).iterdir()
        [helper] = tree.glob("connector/kafka/native/_columns*.so")
        source = ROOT / "connector" / "kafka" / "native" / "columns.c"
        words = ("-shared", "-fPIC", "-O2", "-s", "-target", f"aarch64-linux-gnu.{GLIBC}", "-o", helper, source)
        tools.run("python", "-m", "ziglang", "cc", *words)
        [described] = tree.glob("*.dist-info/WHEEL")
        lines = [line for line in described.read_text().splitlines() if line and not line.startswith("Tag:")]
        tag = f"cp310-abi3-manylinux_{GLIBC.replace('.', '_')}_aarch64"
        described.write_text("\n".join([*lines, f"Tag: {tag}", ""]))
        tools.run("wheel", "pack", "--dest-dir", DIST, tree)
    [made] = DIST.glob("*aarch64.whl")
    return made


def check(tools: Environment, wheels: Sequence[Path], sdist: Path) -> str:
    """Run the tools that know what a package has to be."""
    tools.run("twine", "check", "--strict", *wheels, sdist)
    # W009: three packages and the modules in which PySpark finds formats are meant.
    tools.run("check-wheel-contents", "--ignore", "W009", *wheels)
    tools.run("abi3audit", "--strict", *wheels)
    return ", ".join(file.name for file in (*wheels, sdist))


def try_out(environment: Environment, artifact: Path, helper: bool, cluster: Cluster) -> str:
    """Install a package, copy a topic with the programs of the quick start, and look for the helper."""
    without = {} if helper else {"CC": "/bin/false"}
    environment.install(f"{artifact}[spark]", environment=without)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("feed", "orders", "read"):
            text = (ROOT / "examples" / f"{name}.py").read_text()
            (folder / f"{name}.py").write_text(text.replace("/tmp/barrier", scratch))
        variables = {"BROKERS": cluster.bootstrap_servers, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.run("python", "feed.py", str(ROWS), cwd=folder, **variables)
        environment.run("python", "orders.py", cwd=folder, **variables)
        count = environment.run("python", "read.py", "orders-upper", "--count", cwd=folder, **variables)
        listed = environment.run("barrier", "checkpoints", "list", folder / "orders-upper", cwd=folder)
        probe = "from connector.kafka.native.columns import native_columns; print(native_columns() is not None)"
        found = environment.run("python", "-c", probe, cwd=folder).strip()
        version = environment.run("python", "--version").strip()
    for topic in ("orders", "orders-upper"):
        cluster.delete_topic(topic)
    if count != f"{ROWS} rows, {ROWS} different ones\n" or "settled" not in listed or found != str(helper):
        raise SystemExit(f"{artifact.name} on {version}: {count}{listed}compiled helper: {found}")
    return f"{artifact.name} on {version}, {'with' if helper else 'without'} the compiled helper: {ROWS} rows"


def describe(tools: Environment, wheel: Path) -> None:
    """Write what depends on what, under which licenses, and the checksums."""
    version = wheel.name.split("-")[1]
    whole = Environment(BUILD / "whole")
    # Found by its name: pip records the path of a wheel that it gets by its path, and the SBOM is published. An index could
    # have another package of this name and version, so this one is installed without an index, and then its dependencies.
    whole.install("--no-index", "--no-deps", "--find-links", str(DIST), f"barrier-kafka=={version}")
    whole.install(f"barrier-kafka[{','.join(extras())}]=={version}")
    tools.run(
        *("cyclonedx-py", "environment", whole.python, "--output-format", "JSON"),
        *("--output-file", DIST / f"barrier-kafka-{version}.cdx.json"),
    )
    licenses = tools.run("pip-licenses", "--python", whole.python, "--format", "csv", "--with-urls")
    (DIST / "LICENSES.csv").write_text(licenses)
    (DIST / "SHA256SUMS").write_text("".join(checksums()))


def extras() -> Sequence[str]:
    """Return the extras that users install."""
    from configparser import ConfigParser

    described = ConfigParser()
    described.read(ROOT / "setup.cfg")
    return sorted({*described["options.extras_require"]} - {"dev", "docs", "test"})


def checksums() -> Iterator[str]:
    """Yield a line of ``sha256sum`` for each file in ``dist/``."""
    for file in sorted(DIST.iterdir()):
        if file.name != "SHA256SUMS":
            yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"


if __name__ == "__main__":
    main()
