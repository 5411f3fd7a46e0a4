"""Options of commands that write files for containers with NPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

ascend_runtime_option: Callable[[Any], Any] = click.option(
    "--ascend-runtime",
    is_flag=True,
    help="The hosts have Ascend Docker Runtime, which adds devices and driver to containers.",
)
npu_resource_option: Callable[[Any], Any] = click.option(
    "--npu-resource",
    default="",
    help="Name of the NPUs in Kubernetes. Default: that of Ascend's device plugin, for example "
    "huawei.com/Ascend910; other device plugins use other names.",
)
