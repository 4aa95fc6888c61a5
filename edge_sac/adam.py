"""Adam in single precision, one fused kernel a step: what half precision is measured against, as good as it gets."""

from __future__ import annotations

import torch
from torch import Tensor

from edge_sac.coefficients import Coefficients


class Adam:
    """fp32 parameters theta [N] with m and v, in torch's own fused step.

    Used as `optim.HAdam` is, between `begin` and `end` of the coefficients, of which it needs only whether a step was
    skipped. There is no loss scale.
    """

    def __init__(
        self, theta: Tensor, coefficients: Coefficients, index: int, rate: float, *, whole_gradient: bool = True
    ) -> None:
        self.theta, self.rate = theta, rate
        self.betas, self.eps = coefficients.betas, coefficients.eps
        self.row = coefficients.row(index)
        self.grad = torch.zeros_like(theta) if whole_gradient else None
        self.m, self.v = torch.zeros_like(theta), torch.zeros_like(theta)
        self.count = torch.zeros((), device=theta.device)
        """The step to be taken, from 1; one that is skipped is not counted."""
        self._sum, self._missed = (torch.zeros((), device=theta.device) for _ in range(2))
        self._finite = torch.zeros((), dtype=torch.bool, device=theta.device)

    def step(self) -> None:
        """Take one step along `grad`."""
        assert self.grad is not None
        self.begin()
        self._advance(self.theta, self.grad, self.m, self.v)
        self.count.sub_(self._missed)

    def begin(self) -> None:
        """Begin a step that is taken in parts; it counts even where a part is skipped."""
        self.count.add_(1)

    def advance(self, span: slice, grad: Tensor) -> None:
        """Take the step of theta[span] along `grad`."""
        self._advance(self.theta[span], grad, self.m[span], self.v[span])

    def _advance(self, theta: Tensor, grad: Tensor, m: Tensor, v: Tensor) -> None:
        # Finite where all terms are; a gradient so large that its sum overflows is skipped as well.
        torch.lt(torch.sum(grad, dim=0, out=self._sum).abs_(), torch.inf, out=self._finite)
        self.row.finite.logical_and_(self._finite)
        self._missed.copy_(self._finite).neg_().add_(1)
        torch._fused_adam_(
            [theta],
            [grad],
            [m],
            [v],
            [],
            [self.count],
            lr=self.rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            found_inf=self._missed,
        )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""
        return {"theta": self.theta, "m": self.m, "v": self.v, "count": self.count}
