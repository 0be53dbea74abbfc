"""Mixed precision: fp32, tf32, bf16 and fp16 with a scaled loss.

One update, whatever the precision: `autocast()` around each forward, `backward(loss)` for each
micro-batch, the gradients reduced, then once `unscale(optimizer)`, clipping, and `step(optimizer)`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from brimful.values import EffectiveSetting

Flag = tuple[Any, str, Any]  # where a setting of PyTorch's stands, its name, its value

_NOTHING = nullcontext()  # may be entered again and again
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """A precision on a device, in force until `close()`.

    Parameters, gradients and the optimizer's state are fp32 in all of them. `effective` may be
    another than what was requested, and is what the device computes fast for "auto"; `row` has the
    reason.
    """

    def __init__(self, name: str, device: torch.device):
        self.device = device
        chosen, reason = _fast_on(device) if name == "auto" else (name, "")
        self.effective, why = _in_force(chosen, device)
        self.row = EffectiveSetting(
            "precision", name, self.effective, f"{reason}; {why}" if reason else why
        )
        self._scaler = torch.amp.GradScaler(device.type) if self.effective == "fp16" else None
        self._skipped: torch.Tensor | int = 0
        of_the_card = device.type == "cuda" and self.effective in ("fp32", "tf32")
        self._flags_before = _set_tf32(self.effective == "tf32") if of_the_card else None

    def autocast(self) -> AbstractContextManager[Any]:
        """For a forward and its loss; backward and update stay outside."""
        if self.effective not in _AUTOCAST:
            return _NOTHING
        return torch.autocast(self.device.type, dtype=_AUTOCAST[self.effective])

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss's gradients to those of the parameters; under fp16 they are scaled until
        `unscale`.
        """
        (self._scaler.scale(loss) if self._scaler is not None else loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Once per update, after the reduction over ranks: all of them must see the same inf."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """The update, left out under fp16 where a gradient was inf or NaN; then the scale of the
        next one.
        """
        scaler = self._scaler
        if scaler is None:
            optimizer.step()
            return
        scaler.step(optimizer)
        infinite = scaler._found_inf_per_device(optimizer).values()
        # waits for nothing
        self._skipped += torch.stack([flag.to(self.device) for flag in infinite]).amax()
        scaler.update()

    def forget(self, optimizer: Optimizer) -> None:
        """The update under way is given up (out of memory, say) after `unscale`: its gradients will
        be made anew.
        """
        if self._scaler is not None:
            self._scaler._per_optimizer_states.pop(id(optimizer), None)

    @property
    def skipped(self) -> int:
        """Updates left out so far because a gradient was inf or NaN. Waits for the device."""
        return int(self._skipped)

    @property
    def scale(self) -> float | None:
        """What the loss is multiplied by; None but for fp16. Waits for the device."""
        return None if self._scaler is None else self._scaler.get_scale()

    def state_dict(self) -> dict[str, Any]:
        """Numbers alone: the scale, how long it has held, and the updates skipped."""
        return {
            "precision": self.effective,
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Goes on from `state`. Returns a sentence where it is of another precision, None where
        there is nothing to say.
        """
        self._skipped = int(state["skipped"])
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(dict(state["scaler"]))
        if state["precision"] == self.effective:
            return None
        scale = f"; the loss scale begins at {self.scale:g}" if self._scaler is not None else ""
        return (
            f"The checkpoint was made in {state['precision']}, and the training goes on in "
            f"{self.effective}{scale}."
        )

    def close(self) -> None:
        """Puts the device's flags back as they were found."""
        if self._flags_before is not None:
            _put_tf32(self._flags_before)
            self._flags_before = None


def _fast_on(device: torch.device) -> tuple[str, str]:
    """bf16 where the device has instructions for it, fp16 on older CUDA cards."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the card computes in bf16"
        return "fp16", "the card has no bf16; fp16 with a scaled loss"
    if device.type == "cpu" and _cpu_computes_bf16():
        return "bf16", "the processor multiplies matrices in bf16"
    return "fp32", f"nothing faster is known of {device.type} here"


def _cpu_computes_bf16() -> bool:
    """Whether the processor multiplies in bf16 itself (AVX-512 BF16 or AMX): emulated it is slower
    than fp32.
    """
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name)() for name in names if hasattr(torch.cpu, name))


def _in_force(name: str, device: torch.device) -> tuple[str, str]:
    """What `name` becomes on this device, and why."""
    on_card = device.type == "cuda"
    if name == "tf32" and on_card and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return "fp32", f"TF32 needs compute capability 8.0, and the card has {major}.{minor}"
    here = f"and the device is {device.type}"
    if name == "tf32" and not on_card:
        return "fp32", f"TF32 is a format of NVIDIA's tensor cores, {here}"
    if name == "fp16" and device.type not in ("cuda", "cpu"):
        return "fp32", f"a scaled loss is known to work on cuda and cpu, {here}"
    whys = {
        "fp32": "TF32 is off for matrix products and for convolutions (where PyTorch has it on by "
        "default)"
        if on_card
        else "as asked",
        "tf32": "matrix products and convolutions of fp32 numbers are rounded to TF32; all else "
        "is fp32",
        "bf16": "autocast: matrix products and convolutions in bf16; parameters, gradients and "
        "optimizer in fp32",
        "fp16": "autocast: matrix products and convolutions in fp16, the loss scaled; parameters, "
        "gradients and optimizer in fp32",
    }
    return name, whys[name] + _slow(name, device)


def _slow(name: str, device: torch.device) -> str:
    """What is to be said of a precision that the device imitates."""
    if device.type == "cpu" and name in _AUTOCAST:
        computes = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")()
        words = "; this CPU has no vector instructions for it, so that it is slower than fp32"
    else:
        imitates = name == "bf16" and device.type == "cuda"
        computes = not imitates or torch.cuda.is_bf16_supported(including_emulation=False)
        words = "; the card has no bf16 arithmetic of its own and imitates it, slowly"
    return "" if computes else words


def _set_tf32(on: bool | str) -> list[Flag]:
    """Sets the flags of matrix products and of convolutions; returns what they were.

    PyTorch has these settings twice, and refuses the older names once a script has used the newer
    ones (since 2.9).
    """
    backends: Any = torch.backends
    name, owners = "allow_tf32", [backends.cuda.matmul, backends.cudnn]
    try:
        before = [(owner, name, bool(owner.allow_tf32)) for owner in owners]
    except RuntimeError:
        on = "tf32" if on else "ieee"
        name, owners = "fp32_precision", [owners[0], backends.cudnn.conv, backends.cudnn.rnn]
        before = [(owner, name, owner.fp32_precision) for owner in owners]
    _put_tf32([(owner, name, on) for owner in owners])
    return before


def _put_tf32(flags: list[Flag]) -> None:
    for owner, name, value in flags:
        setattr(owner, name, value)
