"""The one part that is compiled. Where there is no compiler, the package is complete without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "timonel.serving.codec._numbers",
            ["src/timonel/serving/codec/_numbers.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,
        )
    ],
    # One wheel for all Pythons, as long as it keeps to what they promise to keep.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
