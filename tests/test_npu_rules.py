"""Reading rules from the NPU compiler's source: recognition of rules in pieces of such source."""

import json
import subprocess

from openvino.utils.node_factory import NodeFactory

import npu_rules
from npu_compiler.npu_rules.source_rules import source_rules

IMPORTER = """
const x = {
    MAP_ENTRY(ov::op::v0::Relu),
    MAP_ENTRY(ov::op::v1::Transpose),
};
void NGraphImporter::parseNode(mlir::OpBuilder& builder,
                               const std::shared_ptr<ov::op::v1::Transpose>& origNode) {
    auto op = builder.create<IE::TransposeOp>(location, inputs[0], inputs[1], nullptr);
}
case ov::element::Type_t::f16:
manager.register_pass<ov::pass::ConvertGather1ToGather7>();
const auto info = ov::op::v0::Parameter::get_type_info_static();
"""
LAYERS = """
def IE_TransposeOp :
        IE_LayerOp<"Transpose"> {
    let arguments = (ins
        RankedTensorOf<[F16, SI32]>:$input,
        Optional<AnyRankedTensor>:$order
    );
}
"""
INFERENCE = """
mlir::LogicalResult vpux::IE::TransposeOp::infer() {
    auto content = transpose.getOrder().getDefiningOp<Const::DeclareOp>().getContent();
}
"""
RESOURCES = "\n".join(
    f"VPUX{prefix}_CMX_WORKSPACE_SIZE = Byte(1936);\nVPUX{prefix}_MAX_DPU_GROUPS = 2;\n"
    f"VPUX{prefix}_MAX_DMA_PORTS = 1;"
    for prefix in ("37XX", "40XX")
)
SKIPS = """
    R"(.*TransposeLayerTest.*)",
    // R"(.*ReluLayerTest.*)",
"""


def rules(folder):
    files = {
        npu_rules._IMPORTER: IMPORTER,
        npu_rules._LAYERS: LAYERS,
        f"{npu_rules._INFERENCE}/transpose.cpp": INFERENCE,
        npu_rules._RESOURCES: RESOURCES,
        npu_rules._SKIPS: SKIPS,
        f"{npu_rules._KERNELS}/softmax.3720xx.elf": "",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "source"]):
        subprocess.run([*git, *command], check=True)
    return npu_rules.read_rules(npu_rules.Checkout(folder))


def test_each_rule_is_read_with_the_line_that_it_stands_on(tmp_path):
    found = rules(tmp_path)
    kinds = {row["type"]: row for row in found["operations"]}
    assert kinds.keys() == {"Relu", "Transpose", "Parameter"}
    assert (kinds["Transpose"]["opset"], kinds["Transpose"]["line"]) == ("opset1", 4)
    assert kinds["Transpose"]["inputs"] == {"0": 0, "1": 1}
    (rewritten,) = found["rewritten"]
    assert (rewritten["type"], rewritten["opset"]) == ("Gather", "opset1")
    layer = found["layers"]["Transpose"]
    assert layer["operands"][0]["types"] == ["f16", "i32"]
    assert [(row["operand"], row["line"]) for row in layer["constants"]] == [("order", 3)]
    assert found["kernels_of_one_generation"] == ["softmax"]
    assert found["generations"]["4000"]["scratchpad_bytes"] == 1936 * 1024


def test_an_input_that_is_there_or_not_is_found_behind_its_name():
    body = """NGraphImporter::parseNode(mlir::OpBuilder& builder,
        const std::shared_ptr<ov::op::v4::Swish>& origNode) {
    mlir::Value weights = (inputs.size() == 3) ? inputs[2] : nullptr;
    builder.create<IE::SwishOp>(location, inputs[0], nullptr);
    builder.create<IE::SwishOp>(location, inputs[0],
        inputs.size() == 2 ? inputs[1] : nullptr, weights);
}"""
    found = npu_rules._imported_as("void " + body)["opset4", "Swish"]
    assert found == ("Swish", {"0": 0, "1": 1, "2": 2})


def test_versions_are_what_openvino_calls_them():
    for row in source_rules().content["operations"]:
        if row["type"] != "Constant" and row["opset"] != "ie_internal_opset":
            node = NodeFactory(row["opset"]).create(row["type"])
            assert node.get_type_info().version_id == row["opset"], row


def test_a_skip_that_is_commented_out_is_none(tmp_path):
    (skipped,) = rules(tmp_path)["skipped_tests"]
    assert (skipped["operation"], skipped["generations"]) == ("Transpose", ["3720", "4000"])


def test_the_data_of_the_package_has_the_form_that_is_written(tmp_path):
    made = json.loads(json.dumps(rules(tmp_path)))
    assert source_rules().content.keys() == made.keys()
