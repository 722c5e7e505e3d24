"""Torch's functions whose arguments the interface has in another order or form."""

from __future__ import annotations

import torch

__all__ = ["einsum", "meshgrid", "norm", "spmm", "triangular_solve"]


def einsum(equation: str, operands: list[torch.Tensor]) -> torch.Tensor:
    """`torch.einsum` with a list of operands."""
    return torch.einsum(equation, *operands)


def meshgrid(tensors: list[torch.Tensor], *, indexing: str = "ij") -> tuple[torch.Tensor, ...]:
    """`torch.meshgrid` with a list of tensors of one dimension."""
    return torch.meshgrid(*tensors, indexing=indexing)


def norm(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    p: float | None = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """`torch.norm`, whose number p may be no float."""
    found: torch.Tensor = torch.norm(input, p, dim, keepdim)
    return found


def spmm(
    input: torch.Tensor,  # noqa: A002  # the interface's name
    mat2: torch.Tensor,
) -> torch.Tensor:
    """`torch.sparse.mm` of a dense matrix's nonzero values, (n, k), with (k, m)."""
    product: torch.Tensor = torch.sparse.mm(input.to_sparse(), mat2)
    return product


def triangular_solve(
    b: torch.Tensor,
    A: torch.Tensor,  # the interface's name
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The solution x of `A @ x = b`, or of `A.mT @ x = b`, and a copy of A's triangle."""
    matrix = A.triu() if upper else A.tril()
    left = matrix.mT if transpose else matrix
    solution = torch.linalg.solve_triangular(
        left, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return solution, matrix
