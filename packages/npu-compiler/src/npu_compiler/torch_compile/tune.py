"""npu_compiler.tune: measures or estimates a model's graphs while torch.compile captures them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from npu_compiler.torch_compile.backend import npu
from npu_compiler.tuning.estimation import estimator_for
from npu_compiler.tuning.run import open_run
from npu_compiler.tuning.store import TuningReport
from npu_runtime.public_calls import public_call

__all__ = ["tune"]


@public_call
def tune(
    model: Callable[..., Any],
    *args: Any,
    budget_s: float = 20.0,
    max_error: float = 1e-4,
    options: Mapping[str, Any] | None = None,
    target: str | None = None,
    **kwargs: Any,
) -> TuningReport:
    """Measures the ways to compile a model, and records the fastest for later compilations.

    With `target` nothing is measured: the compiler's estimates for an NPU, which may be absent,
    rank the candidates. Such records are separate, and later compilations do not use them.

    Later compilations are `torch.compile(model, backend="npu")` with the same options and input
    sizes, in this process after torch._dynamo.reset(), or in others with the same cache directory.

    Args:
        model: module or function.
        args: its arguments; tuning applies to their sizes.
        budget_s: seconds of measuring per graph, without compilation.
        max_error: candidates with results that differ more from the default's, relative to the
            largest value, are not chosen. Half precision needs about 1e-2.
        options: as for torch.compile(options=...).
        target: such as "lunar-lake" or "4000"; None measures on the device.
        kwargs: its keyword arguments.

    Raises:
        OptionError: [unknown-target].
        TargetError: no compiler of NPUs can be started; see npu_compiler.target_compiler.
    """
    original = getattr(model, "_orig_mod", model)

    # A separate backend, so that dynamo does not reuse code compiled before.
    def tuned(graph_module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return npu(graph_module, inputs, options=options)

    with (
        estimator_for(target) as estimator,
        open_run(budget_s=budget_s, max_error=max_error, estimator=estimator) as session,
        torch.no_grad(),
    ):
        torch.compile(original, backend=tuned)(*args, **kwargs)
    return TuningReport(tuple(session.records), session.skipped)
