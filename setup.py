"""The native library is built where a compiler is; without one the package installs all the same, on torch alone."""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        # No Python in it: a plain C interface, loaded with ctypes, so that one build serves every Python.
        Extension(
            "pbg_tasks.native._native",
            ["pbg_tasks/native/native.cpp"],
            depends=sorted(
                str(path) for pattern in ("*.hpp", "*.inc") for path in Path("pbg_tasks/native").glob(pattern)
            ),
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
            extra_link_args=["-static-libstdc++", "-static-libgcc"],
            py_limited_api=True,
            optional=True,
        )
    ]
)
