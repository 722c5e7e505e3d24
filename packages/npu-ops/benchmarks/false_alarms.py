"""OpAutoCompare over all of torch's database of ops, forward and backward: how many false alarms?

npu's kernels are held to the CPU's by npu_ops.op_conformance, so each call that the tool reports
is the tool's fault, or an unknown fault of a kernel. The exit code is 1 if there is one.

    python benchmarks/false_alarms.py --samples 3 --dtypes float32,bfloat16
"""

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter

import torch
from torch.testing._internal.common_methods_invocations import op_db

from npu_ops.debugging import OpAutoCompare
from npu_ops.op_conformance.comparison import copy_to, gradients, outcome
from npu_ops.tolerances import stays_on_cpu

DTYPES = "float32,bfloat16,float16,int64,bool,complex64"


def compare(op, sample, has_gradient):
    first, args, kwargs = copy_to((sample.input, sample.args, sample.kwargs), "npu")
    if stays_on_cpu(op):
        args, kwargs = copy_to((sample.args, sample.kwargs), "cpu")
    with OpAutoCompare() as tool:
        results = outcome(op, (first, args, kwargs))
        if has_gradient and not isinstance(results, type):
            gradients((first, args, kwargs), results)
    return tool.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3, help="of each op and dtype")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--filter", default="", help="only ops whose names hold this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts, alarms, cells, begin = Counter(), [], 0, time.monotonic()
    for op, name in itertools.product(op_db, options.dtypes.split(",")):
        dtype = getattr(torch, name)
        if options.filter not in op.formatted_name or dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        has_gradient = op.supports_autograd and dtype.is_floating_point
        samples = op.sample_inputs("cpu", dtype, requires_grad=has_gradient)
        cells += 1
        for sample in itertools.islice(samples, options.samples):
            report = compare(op, sample, has_gradient)
            rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
            verdicts.update(row["verdict"] for row in rows)
            alarms += [(op.formatted_name, name, rows[place]) for place in report.marked]
    for op_name, name, row in alarms:
        print(f"{op_name} {name}: {row['signature']}: {row['what differs']}")
    print(f"{cells:,} ops x dtypes, {verdicts.total():,} calls: {dict(verdicts)}")
    print(f"{len(alarms):,} alarms; {time.monotonic() - begin:.0f} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
