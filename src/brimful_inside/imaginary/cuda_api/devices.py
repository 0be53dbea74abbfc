"""Devices as a script writes them: "cuda", torch.device("cuda", 0), 0, torch.cuda.FloatTensor, and
what it reads back."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.utils._device

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.known_values import is_small
from brimful_inside.imaginary.state.patches import replaced
from brimful_inside.imaginary.state.tensors import FROM_DATA, META, C, Tensor, TensorBase, is_meta

Lists = List[List[Optional[Tensor]]]
_NUMBERS = frozenset((int, float, bool, complex))
Groups = Dict[Tuple[torch.device, torch.dtype], Tuple[Lists, List[int]]]


def call_on(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any], device: Any) -> Any:
    """``func(*args, **kwargs)`` on `device`."""
    target = gpu.devices.rewritten(device)
    if target is META:
        return _call_on_card(gpu, func, args, kwargs, gpu.index_of(device))
    kwargs = {**kwargs, "device": target}
    if str(target) == "meta":
        with gpu.user_meta():
            return func(*args, **kwargs)
    return func(*args, **kwargs)


def _call_on_card(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any], index: int
) -> Any:
    gpu.touch()
    source = (
        args[0] if gpu.count > 1 and args and (func is Tensor.to or func in FROM_DATA) else None
    )
    if (
        isinstance(source, Tensor)
        and gpu.is_imaginary(source)
        and gpu.index_of_tensor(source) != index
    ):
        return _moved(gpu, source, index, kwargs)
    with gpu.streams.on(index):
        made = func(*args, **_without_generator({**kwargs, "device": META}))
        gpu.see(made, func)  # torch.tensor makes its storage where no mode can see it
        if func in FROM_DATA:
            _keep_numbers(gpu, made, *args[:1])
        return made


def _moved(gpu: ImaginaryGpu, tensor: Tensor, index: int, options: Dict[str, Any]) -> Tensor:
    """`tensor` on card `index`. Its gradient goes back the same way."""
    options = {
        name: options[name] for name in ("dtype", "memory_format") if options.get(name) is not None
    }
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Move.apply(tensor, gpu, index, options)
    return _copied(gpu, tensor, index, options)


def _copied(gpu: ImaginaryGpu, tensor: Tensor, index: int, options: Dict[str, Any]) -> Tensor:
    with gpu.streams.on(index):
        return torch.ops.aten._to_copy(tensor, device=META, **options)


class _Move(torch.autograd.Function):
    """A copy to another card (ToCopyBackward: the gradient is copied to the card and the dtype that
    the input has)."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, gpu: ImaginaryGpu, index: int, options: Dict[str, Any]
    ) -> Tensor:
        ctx.way_back = gpu, gpu.index_of_tensor(tensor), tensor.dtype
        return _copied(gpu, tensor, index, options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tuple[Any, ...]:
        gpu, index, dtype = ctx.way_back
        return _copied(gpu, grads[0], index, {"dtype": dtype}), None, None, None


def _keep_numbers(gpu: ImaginaryGpu, made: Tensor, data: Any = None) -> None:
    """What torch.tensor and the like were given is known where it is little (known values of a
    tensor follow it anyway)."""
    if data is not None and not isinstance(data, Tensor) and is_small(made):
        gpu.known.keep(made, torch.tensor(data, dtype=made.dtype, device="cpu"))


def _without_generator(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """A generator fills nothing on the card, and one of the host would be refused."""
    return {name: value for name, value in kwargs.items() if name != "generator"}


def _construct(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """torch.zeros and the like. Without a device the default device decides, whose own mode comes
    after this one."""
    device = kwargs.get("device")
    if args and isinstance(args[0], (list, tuple)) and func in FROM_DATA:
        args = (_read(gpu, args[0]), *args[1:])
    if kwargs.get("pin_memory") and not gpu.devices.is_card(device):
        return gpu.pinned.pin(func(*args, **{**kwargs, "pin_memory": False}))
    if device is None:
        # a generator of the card goes with a tensor of the card, so the default device must be it
        generator = kwargs.get("generator")
        of_card = generator is not None and generator.device.type == "cuda"
        return func(*args, **(_without_generator(kwargs) if of_card else kwargs))
    return call_on(gpu, func, args, kwargs, device)


def _read(gpu: ImaginaryGpu, data: Any) -> Any:
    """Lists of numbers, with those that lie on the card read from it."""
    if isinstance(data, (list, tuple)):
        # A loader may make a tensor of each text: only a list that holds more than numbers is gone
        # through in Python.
        return data if _NUMBERS.issuperset(map(type, data)) else [_read(gpu, item) for item in data]
    return (
        gpu.known.value_of(data)
        if isinstance(data, Tensor) and data.dim() == 0 and is_meta(data)
        else data
    )


def _number_as_card(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """torch.device(0) and nn.Module.to(0): a number means the accelerator, which a CPU build does
    not know of."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (torch.device("cuda", args[0]), *args[1:])
    return func(*args, **kwargs)


def _let_scripts_move(gpu: ImaginaryGpu) -> None:
    scripted: Any = torch.jit.RecursiveScriptModule
    original = scripted._apply

    @gpu.patches.function(scripted)
    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        with replaced(gpu.here, "moves_script", True):
            return original(self, *args, **kwargs)


def patch_devices(gpu: ImaginaryGpu) -> None:
    """The device that tensors report, also where no mode is on (in hooks that C++ calls), and the
    default device."""
    raw_device, raw_is_meta = TensorBase.device.__get__, TensorBase.is_meta.__get__
    enabled = torch._C._is_torch_function_enabled

    def device(self: Tensor) -> torch.device:
        answer = raw_device(self)
        if answer.type == "meta" and enabled() and gpu.holds(self):
            return gpu.device_of(self)
        return answer

    def is_cuda(self: Tensor) -> bool:
        return device(self).type == "cuda"

    def is_meta(self: Tensor) -> bool:
        return device(self).type == "meta" if enabled() else raw_is_meta(self)

    gpu.patches.set_all(
        Tensor, device=property(device), is_cuda=property(is_cuda), is_meta=property(is_meta)
    )
    _let_scripts_move(gpu)
    context = torch.utils._device.DeviceContext
    real = context.__torch_function__

    @gpu.patches.function(context)
    def __torch_function__(
        self: Any, func: Any, types: Any, args: Tuple = (), kwargs: Any = None
    ) -> Any:
        if (
            not gpu.devices.is_card(self.device)
            or func not in torch.utils._device._device_constructors()
        ):
            return real(self, func, types, args, kwargs)
        if (kwargs or {}).get("device") is None:
            return call_on(gpu, func, args, kwargs or {}, self.device)
        return func(*args, **(kwargs or {}))


def _device(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> torch.device:
    device = func(*args)
    if device.type == "meta" and gpu.is_imaginary(args[0]):
        return gpu.device_of(args[0])
    return device


def _to(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """to(device, dtype, non_blocking, copy), to(other, non_blocking, copy), to(dtype, ...)."""
    target = args[1] if len(args) > 1 else kwargs.get("device")
    if isinstance(target, (str, torch.device)) or (
        isinstance(target, int) and not isinstance(target, bool)
    ):
        options = dict(zip(("dtype", "non_blocking", "copy"), args[2:]))
        return call_on(gpu, func, args[:1], {**options, **kwargs}, target)
    if gpu.count > 1 and isinstance(target, Tensor) and gpu.is_imaginary(target):
        options = dict(zip(("non_blocking", "copy"), args[2:]))
        return call_on(
            gpu, func, args[:1], {**options, **kwargs, "dtype": target.dtype}, gpu.device_of(target)
        )
    return func(*args, **kwargs)


def _cuda(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    names = ("device", "non_blocking", "memory_format")
    options = {**dict(zip(names, args[1:])), **kwargs}
    device = options.pop("device", None)
    return call_on(gpu, Tensor.to, args[:1], options, "cuda" if device is None else device)


def _type_name(tensor: Tensor) -> str:
    return (
        torch.empty(0, dtype=tensor.dtype, device="cpu").type().replace("torch.", "torch.cuda.", 1)
    )


def _type(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """x.type() names the type; x.type(dtype) and x.type("torch.cuda.HalfTensor") convert."""
    tensor = args[0]
    target = args[1] if len(args) > 1 else kwargs.get("dtype")
    if target is None:
        return _type_name(tensor) if gpu.is_imaginary(tensor) else func(*args)
    if isinstance(target, torch.dtype):
        return tensor.to(target)
    name = target if isinstance(target, str) else "%s.%s" % (target.__module__, target.__name__)
    options = {"dtype": getattr(torch, name.split(".")[-1]).dtype}
    return call_on(gpu, Tensor.to, (tensor,), options, "cuda" if ".cuda." in name else "cpu")


def _set_data(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    """``tensor.data = other``. From the host to the card the tensor keeps its identity, as on a
    real card.

    PyTorch refuses this for the meta device, so the two tensors change places behind their Python
    objects."""
    tensor, value = args
    if is_meta(tensor) == is_meta(value):
        return func(*args)
    grad, tensor_needs = tensor.grad, tensor.requires_grad
    fresh = value.detach()
    if tensor_needs:
        fresh.requires_grad_(True)
    if grad is not None:
        tensor.grad = None
        with torch.no_grad():
            fresh.grad = grad.to(META if is_meta(fresh) else "cpu")
    torch._C._swap_tensor_impl(tensor, fresh)
    return None


def _shallow_copy_fits(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> bool:
    """nn.Module.to asks whether ``parameter.data = moved`` will do. From host to card it does on a
    real card."""
    if is_meta(args[0]) != is_meta(args[1]) and args[0].layout == args[1].layout == torch.strided:
        return not gpu.here.moves_script
    return func(*args, **kwargs)


def _pin_memory(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    if is_meta(args[0]):
        raise RuntimeError(
            "cannot pin '%s' only dense CPU tensors can be pinned" % _type_name(args[0])
        )
    return gpu.pinned.pin(args[0])


def _record_stream(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    """The allocator keeps the block until the other stream is through with it
    (`Ledger.record_stream`)."""
    stream = args[1] if args[1:] else kwargs["s"]
    if is_meta(args[0]):
        gpu.ledger.record_stream(args[0].untyped_storage(), stream.stream_id)


def _new_tensor(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    device = kwargs.get("device")
    if device is not None:
        return call_on(gpu, func, args, kwargs, device)
    made = func(*args, **kwargs)
    if gpu.is_imaginary(args[0]):
        _keep_numbers(gpu, gpu.see(made, func), *args[1:2])
    return made


def _generator_free(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """Random fills of a tensor on the card take a generator of the card, which holds no state
    here."""
    if args and isinstance(args[0], Tensor) and is_meta(args[0]):
        kwargs = _without_generator(kwargs)
    return func(*args, **kwargs)


def handlers() -> Dict[Any, Callable]:
    constructors = torch.utils._device._device_constructors()
    return {
        TensorBase.device.__get__: _device,
        TensorBase.is_cuda.__get__: lambda gpu, func, args, kwargs: gpu.is_imaginary(args[0]),
        TensorBase.is_meta.__get__: lambda gpu, func, args, kwargs: (
            is_meta(args[0]) and not gpu.is_imaginary(args[0])
        ),
        **dict.fromkeys((torch.device, C._nn._parse_to), _number_as_card),
        TensorBase.data.__set__: _set_data,
        torch._has_compatible_shallow_copy_type: _shallow_copy_fits,
        **dict.fromkeys(
            (Tensor.get_device, torch.get_device),
            lambda gpu, func, args, kwargs: (
                gpu.device_of(args[0]).index if gpu.is_imaginary(args[0]) else func(*args)
            ),
        ),
        Tensor.to: _to,
        Tensor.cuda: _cuda,
        Tensor.type: _type,
        Tensor.new_tensor: _new_tensor,
        Tensor.pin_memory: _pin_memory,
        Tensor.is_pinned: lambda gpu, func, args, kwargs: gpu.pinned.is_pinned(args[0]),
        Tensor.record_stream: _record_stream,
        **dict.fromkeys((torch.bernoulli, Tensor.bernoulli, torch.poisson), _generator_free),
        **dict.fromkeys((torch.multinomial, Tensor.multinomial, torch.normal), _generator_free),
        **dict.fromkeys((Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_), _generator_free),
        **dict.fromkeys((Tensor.random_, Tensor.exponential_, Tensor.cauchy_), _generator_free),
        **dict.fromkeys((Tensor.log_normal_, Tensor.geometric_), _generator_free),
        **dict.fromkeys((*constructors, torch.as_tensor), _construct),
    }


def group_by_card(gpu: ImaginaryGpu) -> None:
    """Lists of tensors are grouped by card and dtype before ``torch._foreach_...`` takes them.

    PyTorch's Python asks of each group's device whether it has operations over lists: the meta
    device has none."""
    group = C._group_tensors_by_device_and_dtype

    @gpu.patches.function(C)
    def _group_tensors_by_device_and_dtype(lists: Lists, with_indices: bool = False) -> Groups:
        groups: Groups = {}
        for (device, dtype), (members, indices) in group(lists, with_indices).items():
            if device.type != "meta" or not gpu.holds(members[0][0]):
                groups[device, dtype] = (members, indices)
            elif gpu.count == 1:
                groups[gpu.device_of(members[0][0]), dtype] = (members, indices)
            else:
                _split(gpu, dtype, members, indices, groups)
        return groups


def _split(
    gpu: ImaginaryGpu, dtype: torch.dtype, members: Lists, indices: List[int], groups: Groups
) -> None:
    """One group of several cards as one for each: the tensors at one place in the lists belong
    together."""
    for at, first in enumerate(members[0]):
        if first is None:
            continue
        of_card, places = groups.setdefault(
            (gpu.device_of(first), dtype), ([[] for _ in members], [])
        )
        for column, whole in zip(of_card, members):
            column.extend(whole[at : at + 1])
        if indices:
            places.append(indices[at])
