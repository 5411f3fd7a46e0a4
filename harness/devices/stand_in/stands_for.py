# ruff: noqa: RUF001 - Chinese punctuation
"""What a stand-in host has in place of a real one, and what therefore only a real one can show.

`npu-matrix rehearse` prints the list, and the page `rehearsal` of the documentation is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A part of an NPU host. stand_in: what is in its place. untried: what remains for the real host.

    Each text in English and in Chinese.
    """

    part: tuple[str, str]
    stand_in: tuple[str, str]
    untried: tuple[str, str]


REPLACED = (
    Replaced(
        part=("cards, arithmetic", "卡与计算"),
        stand_in=(
            "the simulated runtime with CPU kernels; every outcome is simulated",
            "模拟运行时与 CPU 算子；所有结果的证据都是 simulated",
        ),
        untried=(
            "numerics, speed, memory, operators that CANN compiles, HCCL over links, failures of cards",
            "数值、速度、显存、由 CANN 编译的算子、经由链路的 HCCL、卡的故障",
        ),
    ),
    Replaced(
        part=("device nodes", "设备节点"),
        stand_in=(
            "/dev/davinciN and the manager nodes are /dev/null",
            "/dev/davinciN 与管理节点都是 /dev/null",
        ),
        untried=(
            "opening a card as a user of the group HwHiAiUser, and that a card is in one container only",
            "以 HwHiAiUser 组用户打开卡，以及一张卡只能进入一个容器",
        ),
    ),
    Replaced(
        part=("npu-smi, hccn_tool", "npu-smi、hccn_tool"),
        stand_in=(
            (
                "scripts that print the recorded layouts of an idle, healthy host, and with --faults those "
                "of a host whose cards, links or driver fail; with --hosts --faults while a check runs"
            ),
            (
                "按已记录的格式打印空闲、健康主机信息的脚本；"
                "使用 --faults 时，打印卡、链路或驱动有故障的主机的信息；"
                "使用 --hosts --faults 时，故障发生在检查运行期间"
            ),
        ),
        untried=(
            "layouts of driver releases that nobody has recorded",
            "尚无记录的驱动版本的格式",
        ),
    ),
    Replaced(
        part=("several hosts", "多台主机"),
        stand_in=(
            (
                "with --hosts, network namespaces on one bridge, each with its own address, npu-smi, device "
                "nodes and node of Ray; torchrun starts the ranks, and HCCL is TCP between them"
            ),
            (
                "使用 --hosts 时，是同一网桥上的多个网络命名空间，"
                "各有自己的地址、npu-smi、设备节点和 Ray 节点；"
                "rank 由 torchrun 启动，HCCL 是它们之间的 TCP 连接"
            ),
        ),
        untried=(
            "RoCE, switches, rank tables (RANK_TABLE_FILE), and which ports HCCL takes",
            "RoCE、交换机、rank table（RANK_TABLE_FILE）、HCCL 选用哪些端口",
        ),
    ),
    Replaced(
        part=("CANN", "CANN"),
        stand_in=(
            (
                "folders, version file and set_env.sh as the Dockerfiles of Ascend/cann-container-image show "
                "them; its libraries export what torch_npu imports"
            ),
            (
                "目录、版本文件和 set_env.sh 与 Ascend/cann-container-image 的 Dockerfile 一致；"
                "其中的库导出 torch_npu 所需的符号"
            ),
        ),
        untried=(
            ("CANN's own installer, its compiler (vllm-ascend's and triton-ascend's kernels), ATB"),
            ("CANN 自身的安装程序、编译器（vllm-ascend 与 triton-ascend 的内核）、ATB"),
        ),
    ),
    Replaced(
        part=("architecture", "架构"),
        stand_in=(
            (
                "packages of this machine's architecture, in most cases x86_64, with the replacements that a "
                "simulated cell gets where the row states no version"
            ),
            "本机架构的软件包，通常是 x86_64；行里没有写明版本的包，按模拟单元的规则替换",
        ),
        untried=(
            "wheels for aarch64, and packages that exist only for it",
            "aarch64 的 wheel，以及只为 aarch64 发布的软件包",
        ),
    ),
    Replaced(
        part=("container engine", "容器引擎"),
        stand_in=(
            (
                "cells are virtual environments; with --engine docker or podman, a service that sees the "
                "stand-in, and for CANN's image one of the same name with the stand-in's CANN on an image of "
                "Python"
            ),
            (
                "单元是虚拟环境；使用 --engine docker 或 podman 时，启动一个能看到替身主机的引擎服务，"
                "并在 Python 镜像上加入替身的 CANN，用与 CANN 镜像相同的名字"
            ),
        ),
        untried=(
            (
                "the images that Ascend publishes, with their system packages and variables; Ascend Docker "
                "Runtime"
            ),
            "Ascend 发布的镜像及其系统软件包和变量、Ascend Docker Runtime",
        ),
    ),
)
