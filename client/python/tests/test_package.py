"""The package as pip installs it: offline, without anything else, and usable from there."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from support import ROOT, target

import llmclient

PACKAGE = ROOT / "client" / "python"


def make_venv(folder):
    """Its python, or None where this machine cannot make one."""
    done = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True)
    return os.path.join(folder, "bin", "python3") if done.returncode == 0 else None


def has_pip():
    return subprocess.run([sys.executable, "-m", "pip"], capture_output=True).returncode == 0


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def run_python(self, python, *arguments, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
        done = subprocess.run(
            [python, *arguments],
            cwd=self.folder, env={**env, **environment}, capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def install(self):
        """Into a fresh environment, or where there is no venv (Debian: python3-venv) into a folder
        of its own. Returns what runs a Python that has the package."""
        # a copy: what pip leaves beside the sources is not for the tree
        source = shutil.copytree(
            PACKAGE,
            os.path.join(self.folder, "source"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        # no index: whatever pip wanted to fetch would fail
        command = ["-m", "pip", "install", "-q", "--no-index", source]
        python = make_venv(os.path.join(self.folder, "venv"))
        if python:
            self.run_python(python, *command)
            return lambda *arguments: self.run_python(python, *arguments)
        if not has_pip():
            self.skipTest("this Python has neither venv nor pip")
        there = os.path.join(self.folder, "installed")
        self.run_python(sys.executable, *command, "--target", there)
        return lambda *arguments: self.run_python(sys.executable, *arguments, PYTHONPATH=there)

    def test_pip_install_offline(self):
        python = self.install()
        said = python(
            "-B",
            "-c",
            "import llmclient, sys\n"
            "print(llmclient.__file__)\n"
            "with llmclient.connect(sys.argv[1]) as c:\n"
            "    print(c.generate('One two three', max_tokens=4).read().tokens)\n",
            target(),
        )
        where, tokens = said.splitlines()
        self.assertTrue(Path(where).is_relative_to(self.folder), where)
        with llmclient.connect(target()) as client:
            self.assertEqual(
                str(client.generate("One two three", max_tokens=4).read().tokens), tokens
            )
        self.assertIn("py.typed", os.listdir(os.path.dirname(where)))
        self.assertIn("llmclient", python("-m", "pip", "list", "--disable-pip-version-check"))

    def backend(self):
        sys.path.insert(0, str(PACKAGE))
        try:
            import build_wheel
        finally:
            sys.path.remove(str(PACKAGE))
        return build_wheel

    def test_wheel_is_reproducible_and_complete(self):
        one = os.path.join(self.folder, self.backend().build_wheel(self.folder))
        first = Path(one).read_bytes()
        self.backend().build_wheel(self.folder)
        self.assertEqual(Path(one).read_bytes(), first)
        with zipfile.ZipFile(one) as wheel:
            names = set(wheel.namelist())
        for path in (PACKAGE / "llmclient").iterdir():
            if path.name != "__pycache__":
                self.assertIn(f"llmclient/{path.name}", names)

    def test_sdist_builds_the_same_wheel(self):
        archive = self.backend().build_sdist(self.folder)
        subprocess.run(["tar", "-xzf", archive], cwd=self.folder, check=True)
        unpacked = os.path.join(self.folder, archive[: -len(".tar.gz")])
        os.mkdir(os.path.join(self.folder, "again"))
        script = "import sys; sys.path.insert(0, '.'); import build_wheel as b; b.build_wheel('../again')"
        subprocess.run([sys.executable, "-B", "-c", script], cwd=unpacked, check=True)
        name = self.backend().build_wheel(self.folder)
        self.assertEqual(
            Path(self.folder, "again", name).read_bytes(), Path(self.folder, name).read_bytes()
        )

    def test_one_version(self):
        text = (PACKAGE / "pyproject.toml").read_text()
        self.assertIn(f'version = "{llmclient.__version__}"', text)
        make = re.search(r"^VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        self.assertEqual(make.group(1), llmclient.__version__)

    def test_everything_named_is_there(self):
        for name in llmclient.__all__:
            self.assertTrue(hasattr(llmclient, name), name)


class Library(unittest.TestCase):
    def load(self, **environment):
        script = (
            "import llmclient\n"
            "try: llmclient.connect('llmd:nobody-is-called-that')\n"
            "except llmclient.ConnectError as error: print(error)\n"
        )
        return subprocess.check_output(
            [sys.executable, "-B", "-c", script],
            env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment},
            text=True,
        )

    def test_named_by_the_environment(self):
        said = self.load(LLMCLIENT_LIBRARY="/nowhere/libllmclient.so")
        self.assertIn("LLMCLIENT_LIBRARY", said)
        self.assertIn("/nowhere/libllmclient.so", said)
        self.assertIn("nobody-is-called-that", self.load())

    def test_another_library(self):
        said = self.load(LLMCLIENT_LIBRARY="libc.so.6")
        self.assertIn("llm_connect", said)


if __name__ == "__main__":
    unittest.main()
