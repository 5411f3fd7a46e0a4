"""Decorators and base classes from other packages whose effect is known."""

from __future__ import annotations

import collections.abc
import re

# Decorators that do not change the signature of a function.
SIGNATURE_PRESERVING = frozenset(
    [
        "abstractmethod",
        "cache",
        "cached",
        "classmethod",
        "contextmanager",
        "asynccontextmanager",
        "inference_mode",
        "lru_cache",
        "no_grad",
        "staticmethod",
    ]
)
# Decorators of classes that add no names.
NAME_PRESERVING = frozenset(
    [
        "dataclass",
        "final",
        "runtime_checkable",
        "auto_docstring",
        "add_start_docstrings",
        "PublicAPI",
        "DeveloperAPI",
        "Deprecated",
        "requires",
        "use_kernel_forward_from_hub",
        # `CustomOp.register(name)` and similar registries return the class unchanged.
        "register",
    ]
)
# The names in torch.nn.Module (torch 2.13).
TORCH_MODULE = frozenset(
    re.findall(
        r"\w+",
        """
        T_destination _apply _call_impl _compiled_call_impl _get_backward_hooks _get_backward_pre_hooks
        _get_name _load_from_state_dict _maybe_warn_non_full_backward_hook _named_members
        _register_load_state_dict_pre_hook _register_state_dict_hook _replicate_for_data_parallel
        _save_to_state_dict _slow_forward _version _wrapped_call_impl add_module apply bfloat16 buffers
        call_super_init children compile cpu cuda double dump_patches eval extra_repr float forward
        get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia
        named_buffers named_children named_modules named_parameters parameters register_backward_hook
        register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
        register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
        register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook
        requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train type xpu
        zero_grad
        """,
    )
)
# Base classes without names that other code uses.
PLAIN_BASES = frozenset({"object", "ABC", "Protocol", "Generic"})
# Base classes of the standard library, with the names that subclasses inherit.
STANDARD_BASES = {
    f"{module}.{name}": frozenset(dir(getattr(collections.abc, name)))
    for name in collections.abc.__all__
    for module in ("collections.abc", "typing")
}
