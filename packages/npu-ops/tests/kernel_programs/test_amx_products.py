"""AMX's products, on registers in plain C++ where the processor has none."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "csrc"
AVX512 = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
CPU = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
    pytest.mark.skipif("avx512_bf16" not in CPU, reason="what stands around them is AVX-512"),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds the program with registers that multiply by the given line."""
    folder = tmp_path_factory.mktemp("amx")
    flags = ["-std=c++20", "-O1", f"-I{SOURCES}", *(f"-m{name}" for name in AVX512)]

    def build(name: str, emulated: str) -> Path:
        (folder / f"{name}.h").write_text(emulated)
        program = folder / name
        linear = SOURCES / "kernel_programs" / "linear_kernels.cpp"
        parts = {
            "linear": [linear, "-mavx512bf16", "-ffp-contract=fast"],
            "forms": [SOURCES / "kernel_programs" / "block_forms.cpp"],
            "main": [HERE / "amx_linear.cpp"],
            name: [
                SOURCES / "kernel_programs" / "amx_products.cpp",
                "-include",
                folder / f"{name}.h",
            ],
        }
        for part, arguments in parts.items():
            target = folder / f"{part}.o"
            if not target.exists():
                command = ["c++", *flags, *arguments, "-c", "-o", target]
                subprocess.run(command, check=True, timeout=300)
        objects = [folder / f"{part}.o" for part in parts]
        subprocess.run(["c++", *objects, "-o", program], check=True, timeout=120)
        return program

    return build


def printed(program: Path, which: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [program, which], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr.strip()


def test_results_are_those_of_the_other_products_bit_for_bit(build):
    program = build("right", (HERE / "emulated_amx.h").read_text())
    expected, none = printed(program, "without")
    found, multiplied = printed(program, "with")
    assert none == "0"
    assert int(multiplied) > 100
    assert len(set(expected)) == 72
    assert found == expected


def test_a_processor_that_multiplies_wrongly_is_not_believed(build):
    emulated = (HERE / "emulated_amx.h").read_text()
    wrong = emulated.replace("static_cast<std::int8_t>(registers[left]", "(registers[left]")
    assert wrong != emulated
    assert printed(build("wrong", wrong), "with")[0] == ["wrong"]
