"""Compiles the kernel of the engine 'fused'; everything else is in pyproject.toml and setup.cfg.

The kernel is a plain shared library that Python knows nothing of, so one wheel serves every Python 3 on a platform.
Where there is no C++ compiler the package is installed without it, and its other engines run.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# No runtime of OpenMP, only its pragmas for vectors; nothing that changes what numbers mean.
FLAGS = {
    "msvc": ["/std:c++17", "/O2", "/openmp:experimental", "/EHs-c-"],
    "unix": [
        "-std=c++17", "-O2", "-g0", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions",
        "-fno-rtti", "-fvisibility=hidden",
    ],
}  # fmt: skip


class BuildKernel(build_ext):
    """Builds a library with a plain name and without a Python module's entry point."""

    def build_extension(self, ext: Extension) -> None:
        """Give the compiler at hand its flags. An editable installation keeps a library that is newer than its sources.

        A wheel is always compiled for: what lies beside the sources may be of another platform or compiler.
        """
        built = Path(self.get_ext_filename(ext.name))
        newest = max(Path(one).stat().st_mtime for one in (*ext.sources, __file__))
        if self.editable_mode and built.exists() and built.stat().st_mtime > newest:
            target = Path(self.get_ext_fullpath(ext.name))
            if not target.exists() or not target.samefile(built):
                self.copy_file(str(built), str(target))
            return
        ext.extra_compile_args = FLAGS["msvc" if self.compiler.compiler_type == "msvc" else "unix"]
        super().build_extension(ext)

    def get_ext_filename(self, fullname: str) -> str:
        """A name without the version of Python."""
        return fullname.replace(".", "/") + (".native.dll" if sys.platform == "win32" else ".native.so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """No `PyInit_...`, which Windows would look for."""
        return ext.export_symbols


class WheelForAnyPython(bdist_wheel):
    """Names the platform, and no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag of `get_tag` with any Python 3."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension("hf_relpos.engines.cpu.kernel", ["hf_relpos/engines/cpu/kernel.cpp"], language="c++", optional=True)
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": WheelForAnyPython},
)
