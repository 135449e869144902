"""Compiles the C kernels into the wheel. Without a C compiler they are left out, and compiled at their first use."""

import runpy
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = Path("unlimiformer", "datastore", "kernels")
COMPILE = runpy.run_path(str(Path(__file__).parent / "src" / KERNELS / "compile.py"))


class BuildWithKernels(build_py):
    """Copies the package, and compiles its kernels."""

    def run(self):
        """Compile for torch's own threads; an installation for development compiles at the first use."""
        super().run()
        folder = Path(self.build_lib) / KERNELS
        for earlier in folder.glob("kernels-*.so"):
            earlier.unlink()
        compiler, mode = COMPILE["find_compiler"](), COMPILE["SHARED_THREADS"]
        if compiler is None or self.editable_mode:
            return
        target = folder / COMPILE["library_name"](mode)
        try:
            COMPILE["compile_library"](compiler, mode, target)
        except (OSError, subprocess.SubprocessError) as error:
            self.warn(f"the kernels were not compiled: {error}")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every version of Python: the kernels are called by ctypes."""

    def get_tag(self):
        """Return the tags of Python, ABI and platform."""
        has_kernels = any((Path(self.bdist_dir) / KERNELS).glob("kernels-*.so"))
        self.root_is_pure = not has_kernels
        return ("py3", "none", super().get_tag()[2] if has_kernels else "any")


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
