"""Build of the native library, and text for an index.

Without a compiler the package installs all the same, on torch alone.
"""

import hashlib
import re
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# The names in the archives are ours alone; macOS' linker exports none of them.
HIDDEN = ["-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else []
SOURCES = sorted(path for kind in ("cpp", "hpp", "inc") for path in Path("pbg_tasks/native").glob(f"*.{kind}"))
DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


class PlainWheel(bdist_wheel):
    """Wheel for every Python: the library has no Python in it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag, with no Python but the platform."""
        return "py3", "none", super().get_tag()[2]

    def run(self) -> None:
        """Build from the sources alone.

        Else modules that were removed since an earlier build, and its library, would be packed, too.
        """
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()


class LibraryInPlace(build_ext):
    """Library beside its sources: of these, or none."""

    def copy_extensions_to_source(self) -> None:
        """Copy the library; without one, leave no earlier one."""
        for earlier in Path("pbg_tasks/native").glob("_native*.so"):
            earlier.unlink()
        super().copy_extensions_to_source()


def text_for_index(readme: Path) -> str:
    """Return the README without what leads into the checkout.

    An index shows neither its pictures nor its pages, and the project has no public address to lead to. A tree without
    the file, such as what an image copies, installs all the same.
    """
    if not readme.is_file():
        return "This was built from a tree without README.md."
    title, *parts = (part for part in readme.read_text(encoding="utf-8").split("\n\n") if "![" not in part)
    note = "Pictures, and links to pages of the source tree, are left out here."
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", "\n\n".join((title, note, *parts)))


setup(
    long_description=text_for_index(Path("README.md")),
    long_description_content_type="text/markdown",
    cmdclass={"bdist_wheel": PlainWheel, "build_ext": LibraryInPlace},
    ext_modules=[
        # No Python in it: a plain C interface, loaded with ctypes, so that one build serves every Python.
        Extension(
            "pbg_tasks.native._native",
            ["pbg_tasks/native/native.cpp"],
            depends=[str(path) for path in SOURCES],
            define_macros=[("PBG_SOURCES", f'"{DIGEST}"')],
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-g0",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-fopenmp-simd",
                "-fvisibility=hidden",
                "-Wno-psabi",
            ],
            extra_link_args=["-static-libstdc++", "-static-libgcc", *HIDDEN],
            py_limited_api=True,
            optional=True,
        )
    ],
)
