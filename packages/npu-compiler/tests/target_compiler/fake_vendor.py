"""The compiler of a vendor for tests: torch computes its programs in float16."""

from __future__ import annotations

from npu_compiler.graph.nodes import op_name
from npu_compiler.target_compiler import Target, TargetProgram, TargetReport, Vendor


class FakeVendor(Vendor):
    """Keeps the names of the programs that it was given in `seen`, with their calls."""

    name = "fake"
    targets = (Target("fake-1", "f1", "Fake One"),)
    licence = "the fake terms (https://example.org)"
    blob_suffix = ".fake"

    def __init__(self):
        self.seen = []
        self.known = {}  # op -> why it is refused beforehand
        self.refused = {}  # op -> why a program with it is refused
        self.names_refused = False  # whether a refusal names the call
        self.wrong = ()  # ops that are computed wrongly
        self.folder = None  # of blobs

    def install(self, release, *, wheel, shows_progress):
        return {"release": release or "1.0", "version": "fake 1.0", "library": ""}

    def remove(self, release):
        raise AssertionError(release)

    def state(self):
        return {"sources": [], "releases": ["1.0"], "missing": []}

    def refusal(self, node, target):
        return self.known.get(op_name(node.target))

    def compile(self, program, target):
        calls = [n for n in program.module.graph.nodes if n.op == "call_function"]
        self.seen.append([op_name(node.target) for node in calls])
        refused = [node for node in calls if op_name(node.target) in self.refused]
        reason = self.refused[op_name(refused[0].target)] if refused else ""
        blob = None
        if self.folder is not None and not refused:
            blob = self.folder / "made.fake"
            blob.write_bytes(b"fake" * (1 + len(program.calibration)))
        report = TargetReport(
            target=target.number,
            compiler="fake 1.0",
            is_accepted=not refused,
            reason=reason,
            operation=refused[0].name if refused and self.names_refused else "",
            blob=blob,
            blob_bytes=0,
            duration_s=0.0,
            estimate=None,
        )

        def run(inputs):
            given = iter(inputs)
            values = [
                program.constants[node.name] if node.name in program.constants else next(given)
                for node in program.module.graph.find_nodes(op="placeholder")
            ]
            results = program.module(*[value.half() for value in values])
            is_wrong = any(op_name(node.target) in self.wrong for node in calls)
            return [result + 1 if is_wrong else result for result in results]

        return TargetProgram(report, None if refused else run)

    def describe_blob(self, program, target, file):
        shapes = [tuple(node.meta["val"].shape) for node in program.inputs]
        return f"run {file} on {target.chip} with {shapes}\n"
