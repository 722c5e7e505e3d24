"""A model that lives on npu and is taken to another device by a library: that is said."""

import logging

import torch

__all__ = ["warn_if_moved"]

_logger = logging.getLogger(__name__)


def warn_if_moved(model: object, device: torch.device, mover: str, decided_by: str) -> None:
    """Logs a warning when a model on npu is about to go to another device.

    Args:
        model: what is moved; anything but a module is passed over.
        device: where it goes.
        mover: what moves it.
        decided_by: what settled the device, when it was made.
    """
    if device.type == "npu" or not isinstance(model, torch.nn.Module):
        return
    first = next(model.parameters(), None)
    if first is not None and first.device.type == "npu":
        _logger.warning(
            "npu: %s moves the model from %s to %s, the device that was taken when %s was made. "
            "Set NPU_AUTO=1, or put the model on npu before that, and it stays there.",
            mover,
            first.device,
            device,
            decided_by,
        )
