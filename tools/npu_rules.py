"""Extracts the rules of the NPU's compiler from a checkout of its source, as data.

`python tools/npu_rules.py CHECKOUT [--output FILE] [--tests FILE]`, where CHECKOUT is a clone of
github.com/openvinotoolkit/npu_compiler. Only facts are kept: names, element types, ranks, sizes,
with the file and line of each. The second file has the configurations in the compiler's tests, read
by npu_lit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from npu_conditions import CONDITIONS, conditions
from npu_lit import configurations

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "packages/npu-compiler/src/npu_compiler/npu_rules/npu_rules.json"
TESTS = ROOT / "tests/npu_lit.json"

_IMPORTER = "src/vpux_compiler/src/frontend/IE.cpp"
_LAYERS = "src/vpux_compiler/tblgen/vpux/compiler/dialect/IE/ops.td"
_INFERENCE = "src/vpux_compiler/src/dialect/IE/IR/ops"
_RESOURCES = "src/vpux_compiler/include/vpux/compiler/utils/platform_resources.hpp"
_SKIPS = "tests/functional/shared_tests_instances/skip_tests_config.cpp"
_LIT = "tests/lit/"
_KERNELS = "sw_runtime_kernels/kernels/prebuild/act_shave_bin"
_GENERATIONS = {"3720": ("3720xx", "37XX"), "4000": ("4000xx", "40XX")}

# Operations consumed by passes before the import; a pass counts if the importer registers it.
_TAKEN = {
    "SliceToStridedSlice": [("Slice", "opset8")],
    "ConvertNMS1ToNMS9": [("NonMaxSuppression", "opset1")],
    "ConvertNMS3ToNMS9": [("NonMaxSuppression", "opset3")],
    "ConvertNMS4ToNMS9": [("NonMaxSuppression", "opset4")],
    "ConvertNMS5ToNMS9": [("NonMaxSuppression", "opset5")],
    "ConvertNMS9ToNMSIEInternal": [("NonMaxSuppression", "opset9")],
    "Gelu7Downgrade": [("Gelu", "opset7")],
    "ConvertBroadcastToTiles": [("Broadcast", "opset1")],
    "EinsumDecomposition": [("Einsum", "opset7")],
    "ScaledDotProductAttentionDecomposition": [("ScaledDotProductAttention", "opset13")],
    "ConvertGather1ToGather7": [("Gather", "opset1")],
    "ConvertGather7ToGather8": [("Gather", "opset7")],
    "ConvertDeformableConv8To1": [("DeformableConvolution", "opset8")],
    "ConvertMaxPool14ToMaxPool8": [("MaxPool", "opset14")],
    "ConvertAvgPool14ToAvgPool1": [("AvgPool", "opset14")],
    "ConvertSoftMax1ToSoftMax8": [("Softmax", "opset1")],
    "ConvertDetectionOutput8ToDetectionOutput1": [("DetectionOutput", "opset8")],
    "ConvertShapeOf3": [("ShapeOf", "opset3")],
    "ConvertInterpolate1ToInterpolate4": [("Interpolate", "opset1")],
    "ConvertInterpolate11ToInterpolate4": [("Interpolate", "opset11")],
    "ConvertTopK11ToTopK3": [("TopK", "opset11")],
    "ConvertPad12ToPad1": [("Pad", "opset12")],
    "ConvertVariadicSplitToStridedSliceOp": [("VariadicSplit", "opset1")],
}
# Locations of the conditions of these passes, which npu_compiler.npu_rules.before_import checks: a
# file of openvinotoolkit/openvino and a commit with it; no commit for a file of the compiler.
_OF_OPENVINO = "src/common/transformations/src/transformations/op_conversions"
_READ = {
    "SliceToStridedSlice": ("convert_slice_to_strided_slice.cpp", "094c82ee7357"),
    **dict.fromkeys(
        ("ConvertNMS1ToNMS9", "ConvertNMS3ToNMS9", "ConvertNMS4ToNMS9", "ConvertNMS5ToNMS9"),
        ("convert_previous_nms_to_nms_9.cpp", "12d0d7a32b8d"),
    ),
    "ConvertNMS9ToNMSIEInternal": ("convert_nms9_to_nms_ie_internal.cpp", "0280ace0cd4e"),
    "ConvertBroadcastToTiles": ("convert_broadcast_to_tiles.cpp", "0824a3e7f34f"),
    "EinsumDecomposition": ("einsum_decomposition.cpp", "04924f344bbe"),
    "ScaledDotProductAttentionDecomposition": (
        "scaled_dot_product_attention_decomposition.cpp", "037c2dd682bb",
    ),
    "ConvertDeformableConv8To1": ("convert_deformable_conv_v8_to_v1.cpp", "01876d71a60c"),
    "ConvertDetectionOutput8ToDetectionOutput1": (
        "detection_output_downgrade.cpp", "203ec526af20",
    ),
    "ConvertShapeOf3": ("convert_shapeof3.cpp", "1a4c02d9b583"),
    "ConvertInterpolate1ToInterpolate4": (
        "convert_interpolate1_to_interpolate4.cpp", "00b33a930a82",
    ),
    "ConvertInterpolate11ToInterpolate4": (
        "convert_interpolate11_downgrade.cpp", "094c82ee7357",
    ),
    "ConvertVariadicSplitToStridedSliceOp": (
        "src/vpux_ngraph_transformations/src/passes/convert_variadic_split_to_strided_slice.cpp",
        "",
    ),
}  # fmt: skip
# New versions of operations with unchanged operands, so that the same rules apply.
_BECOME = {
    "Gelu7Downgrade": "opset2",
    "ConvertGather1ToGather7": "opset8",
    "ConvertGather7ToGather8": "opset8",
    "ConvertMaxPool14ToMaxPool8": "opset1",
    "ConvertAvgPool14ToAvgPool1": "opset1",
    "ConvertSoftMax1ToSoftMax8": "opset8",
    "ConvertTopK11ToTopK3": "opset3",
    "ConvertPad12ToPad1": "opset1",
}
# Layers with a program inside, which a line of text does not show.
_BODIES = ("If", "Loop", "TensorIterator")
# OpenVINO's version of a class with another version in its namespace.
_VERSIONS = {
    ("LogicalXor", "opset1"): "opset2",
    ("MVN", "opset4"): "opset2",
    ("NonMaxSuppressionIEInternal", "internal"): "ie_internal_opset",
    ("RMS", "internal"): "ie_internal_opset",
}
# The compiler's names of OpenVINO's element types; I8 has no sign there, and is the importer's type
# of booleans.
_INTEGERS = ("i64", "i32", "i16", "i8", "i4", "u64", "u32", "u16", "u8", "u4", "boolean")
_TYPES = {
    "AnyInteger": _INTEGERS,
    "AnyFloat": ("f64", "f32", "f16", "bf16"),
    "I8": ("boolean",),
    "Bool8": ("boolean",),
    "quant_QuantizedType": (),
    **{f"F{width}": (f"f{width}",) for width in (16, 32, 64)},
    **{f"SI{width}": (f"i{width}",) for width in (4, 8, 16, 32, 64)},
    **{f"UI{width}": (f"u{width}",) for width in (4, 8, 16, 32, 64)},
}

# Reads of an operand's constant: with an error otherwise, or without another case.
_ASKED = re.compile(
    r"get(\w+)\(\)\s*\.getDefiningOp<Const::DeclareOp>\(\)"
    r"(?:\.getContent\(\)|;.{0,160}?Only constant)"
    r"|constInputToData\([^()]+(?:\(\))?, \w+\.get(\w+)\(\)\)\s*\.value\(\)",
    re.DOTALL,
)


class Checkout:
    """The files of one commit of the compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.commit, self.date = self._git("log", "-1", "--format=%H %cs").split()
        self.files = self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines()

    def text(self, path: str) -> str:
        """Returns a file's text."""
        return self._git("show", f"HEAD:{path}")

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_rules(source: Checkout) -> dict[str, Any]:
    """Returns all rules of a checkout."""
    importer = source.text(_IMPORTER)
    layers = dict(_layers(source.text(_LAYERS)))
    for name, constants in _constants(source, layers):
        if name in layers:
            layers[name]["constants"] = constants
    operations = list(_operations(importer))
    used = {operation["layer"] for operation in operations}
    kernels = {
        generation: sorted(
            Path(path).name.split(".")[0]
            for path in source.files
            if path.startswith(_KERNELS) and path.endswith(f".{suffix}.elf")
        )
        for generation, (suffix, _) in _GENERATIONS.items()
    }
    only_one = set(kernels["3720"]) ^ set(kernels["4000"])
    return {
        "repository": "openvinotoolkit/npu_compiler",
        "commit": source.commit,
        "date": source.date,
        "files": {
            "operations": _IMPORTER,
            "layers": _LAYERS,
            "constants": _INFERENCE,
            "conditions": _IMPORTER,
            "scratchpad": _RESOURCES,
            "kernels": _KERNELS,
            "skipped_tests": _SKIPS,
        },
        "element_types": sorted(set(re.findall(r"case ov::element::Type_t::(\w+):", importer))),
        "operations": operations,
        "rewritten": list(_rewritten(importer)),
        "conditions": [
            *conditions(source),
            {
                # This pass removes elements where the mask is true, and keeps the others.
                "operations": ["ScaledDotProductAttention"],
                "opset": "",
                "input": 3,
                "types": ["f16", "f32"],
                "source": _read_at("ScaledDotProductAttentionDecomposition"),
            },
        ],
        "layers": {name: layers[name] for name in sorted(used & set(layers))},
        "kernels": kernels,
        "kernels_of_one_generation": sorted(only_one),
        "generations": _generations(source.text(_RESOURCES)),
        "skipped_tests": list(
            _skipped(source.text(_SKIPS), (operation["type"] for operation in operations))
        ),
    }


def read_tests(source: Checkout, rules: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the configurations of operations in the tests of the compiler's passes."""
    layers = {row["layer"] for row in rules["operations"]}
    spoken = {
        found[2]: found[1]
        for found in re.finditer(
            r'^def IE_(\w+?)(?:Op)?\s*:\s*IE_\w+<\s*"(\w+)"', source.text(_LAYERS), re.MULTILINE
        )
    }
    paths = [path for path in source.files if path.startswith(_LIT) and path.endswith(".mlir")]
    wanted = {
        name: layer for name, layer in spoken.items() if layer in layers and layer not in _BODIES
    }
    return configurations(map(source.text, paths), wanted)


def _operations(text: str) -> Iterator[dict[str, Any]]:
    layers = _imported_as(text)
    for found in re.finditer(r"MAP_ENTRY\(ov::(?:op::)?(\w+)::(\w+)\)", text):
        space, name = found[1], found[2]
        spoken = space.replace("v", "opset")
        opset = (
            "ie_internal_opset" if space == "internal" else _VERSIONS.get((name, spoken), spoken)
        )
        layer, inputs = layers.get((spoken, name)) or layers.get(("", name), ("", {}))
        yield {
            "type": name, "opset": opset, "line": _line(text, found), "layer": layer,
            "inputs": inputs,
        }  # fmt: skip
    for name in ("Parameter", "Result"):
        found_port = re.search(rf"ov::op::v0::{name}::get_type_info_static", text)
        if found_port:
            line = _line(text, found_port)
            yield {"type": name, "opset": "opset1", "line": line, "layer": "", "inputs": {}}


def _imported_as(text: str) -> dict[tuple[str, str], tuple[str, dict[str, int]]]:
    """Returns the layer that an operation becomes, and the operand of each input.

    An operation is also found without its opset, since the importer uses a later one for some.
    """
    heads = list(re.finditer(
        r"void NGraphImporter::parseNode\(mlir::OpBuilder& builder,\s*"
        r"const std::shared_ptr<ov::(?:op::)?(\w+)::(\w+)>& origNode\)", text))  # fmt: skip
    found = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)]
        calls = list(re.finditer(r"builder\.create<IE::(\w+?)(?:Op)?>\(", body))
        if not calls:
            continue
        # If there are variants for static and dynamic sizes, the static one has the plain name.
        name = head[2] if head[2] in {call[1] for call in calls} else calls[0][1]
        # If there are variants per number of inputs, the longest names them all.
        inputs = max((_inputs_of(body, call) for call in calls if call[1] == name), key=len)
        found[head[1].replace("v", "opset"), head[2]] = (name, inputs)
        found.setdefault(("", head[2]), (name, inputs))
    return found


def _inputs_of(body: str, call: re.Match[str]) -> dict[str, int]:
    """Returns the operand of each input, directly or by a variable for optional inputs."""
    inputs = {}
    for position, argument in enumerate(_arguments(body[call.end() :]), start=-1):
        index = re.search(r"(?:^|\? )inputs\[(\d+)\](?: : nullptr)?$", argument) or re.search(
            rf"\b{re.escape(argument)} = [^;]*?\binputs\[(\d+)\]", body[: call.start()]
        )
        if index:
            inputs[index[1]] = position
    return inputs


def _arguments(text: str) -> list[str]:
    """Returns the arguments of a call whose parenthesis was just opened."""
    text = re.sub(r"//[^\n]*", "", text)
    depth, start, found = 0, 0, []
    for position, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            found.append(text[start:position].strip())
            start = position + 1
        if depth < 0:
            break
    return found


def _rewritten(text: str) -> Iterator[dict[str, Any]]:
    for found in re.finditer(r"(?:register_pass|add_matcher)<[\w:]*?(\w+)>\(", text):
        for name, opset in _TAKEN.get(found[1], ()):
            yield {
                "type": name,
                "opset": opset,
                "pass": found[1],
                "line": _line(text, found),
                "into": _BECOME.get(found[1]),
                "conditions": _read_at(found[1]),
            }


def _read_at(name: str) -> str:
    """Returns the location of a pass's conditions; "" for one without conditions."""
    path, commit = _READ.get(name, ("", ""))
    return f"openvino {_OF_OPENVINO}/{path} at {commit}" if commit else path


def _layers(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for found in re.finditer(r"^def IE_(\w+?)(?:Op)?\s*:(.*?)^}", text, re.DOTALL | re.MULTILINE):
        block = re.search(r"let arguments = \(ins(.*?)\);", found[2], re.DOTALL)
        operands = []
        for line in (block[1] if block else "").splitlines():
            operand = re.match(r"\s*(.+?):\$(\w+),?\s*$", line)
            if operand and "Tensor" in operand[1]:
                operands.append({"name": operand[2], **_constraint(operand[1])})
        yield found[1], {"line": _line(text, found), "operands": operands, "constants": []}


def _constraint(text: str) -> dict[str, Any]:
    """Returns the element types and ranks of an operand; None if all are accepted."""
    if text.startswith("AnyTypeOf") or "AnyRankedTensor" in text or "AnyType" in text:
        return {"types": None, "ranks": None, "is_variadic": "Variadic" in text}
    lists = re.findall(r"\[([^\[\]]*)\]", text)
    types = sorted({
        kind for word in lists[0].split(",") for kind in _TYPES.get(word.strip(), ())
    }) if lists else None  # fmt: skip
    rank = re.search(r"(\d)DTensorOf", text)
    ranks = [int(rank[1])] if rank else None
    if "TensorRankOf" in text:
        ranks = [int(word) for word in lists[1].split(",")]
    return {"types": types, "ranks": ranks, "is_variadic": "Variadic" in text}


def _constants(
    source: Checkout, layers: dict[str, Any]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Returns the operands that must be constants, by layer.

    Only reads that raise an error or are unchecked count; optional rewrites of constants are no
    requirement.
    """
    operands = {
        name: {operand["name"] for operand in layer["operands"]} for name, layer in layers.items()
    }
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in source.files:
        if not (path.startswith(_INFERENCE) and path.endswith(".cpp")):
            continue
        text = source.text(path)
        for place in _ASKED.finditer(text):
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", place[1] or place[2]).lower()
            before = re.findall(r"IE::(\w+?)(?:Op)?(?:Adaptor)?\b", text[: place.start()])
            layer = next((near for near in reversed(before) if name in operands.get(near, ())), "")
            row = {"operand": name, "file": path, "line": _line(text, place)}
            found.setdefault(layer, {}).setdefault(name, row)
    for layer, rows in found.items():
        yield layer, list(rows.values())


def _generations(text: str) -> dict[str, dict[str, int]]:
    def number(name: str) -> int:
        found = re.search(rf"{name}\s*=\s*(?:Byte\()?(\d+)", text)
        if found is None:
            raise ValueError(f"{_RESOURCES} has no {name}")
        return int(found[1])

    return {
        generation: {
            "scratchpad_bytes": number(f"VPUX{prefix}_CMX_WORKSPACE_SIZE") * 1024,
            "tiles": number(f"VPUX{prefix}_MAX_DPU_GROUPS"),
            "dma_ports": number(f"VPUX{prefix}_MAX_DMA_PORTS"),
        }
        for generation, (_, prefix) in _GENERATIONS.items()
    }


def _skipped(text: str, kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Returns patterns that skip single-layer tests, each with its line.

    A pattern for all tests of an operation names it; others apply to some of its sizes.
    """
    by_name = {kind.lower(): kind for kind in kinds}
    for number, line in enumerate(text.splitlines(), start=1):
        found = re.search(r'R?"\(?(\.\*[^"]*LayerTest[^"]*?)\)?"', line)
        if found is None or line.strip().startswith("//"):
            continue
        whole = re.fullmatch(r"\.\*(\w+?)\d*LayerTest\w*(?:\.(NPU\d+))?\.\*", found[1])
        generation = re.search(r"NPU(3720|4000)", found[1])
        yield {
            "pattern": found[1],
            "line": number,
            "operation": by_name.get(whole[1].lower(), "") if whole else "",
            "generations": [generation[1]] if generation else list(_GENERATIONS),
        }


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1


def main() -> None:
    """Reads the given checkout, and writes the data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of openvinotoolkit/npu_compiler")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--tests", type=Path, default=TESTS)
    given = parser.parse_args()
    source = Checkout(given.checkout)
    rules = read_rules(source)
    given.output.write_text(json.dumps(rules, indent=1) + "\n")
    tests = read_tests(source, rules)
    lines = (json.dumps(test, separators=(",", ":")) for test in tests)
    given.tests.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(
        f"{len(rules['operations'])} operations, {len(rules['rewritten'])} rewritten before, "
        f"{len(rules['layers'])} layers, commit {rules['commit'][:12]}: {given.output}\n"
        f"{len(rules['conditions'])} of {len(CONDITIONS) + 1} conditions are there\n"
        f"{len(tests)} configurations of tests: {given.tests}"
    )


if __name__ == "__main__":
    main()
