"""The allow-list: environment variables whose values may be stored and shown, and why.

Of every other variable only the name may be stored, and its value is masked wherever it is printed.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from harness.sources.redact import MASK, redact_text, redact_url
from harness.sources.secrets.credential_text import NO_SCHEME, token_segments


class Storage(enum.Enum):
    """What may be stored of a variable: its value, its URLs without credentials, or only its name."""

    VALUE = "value"
    URLS = "urls"
    NAME = "name"


@dataclass(frozen=True, kw_only=True)
class StoredVariables:
    """Variables whose names match the regular expression `names`, and why their values are harmless."""

    names: str
    storage: Storage
    reason: str


STORED = (
    StoredVariables(
        names=r"PATH|HOME|PWD|OLDPWD|SHELL|SHLVL|USER|LOGNAME|HOSTNAME|HOSTTYPE|MAIL|_|TMPDIR|TEMP|TMP"
        r"|TERM(_PROGRAM(_VERSION)?)?|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?"
        r"|LANG|LANGUAGE|LC_[A-Z]+|TZ|LS_COLORS|EDITOR|VISUAL|PAGER|LESS(OPEN|CLOSE)?|PS[1-4]|DISPLAY"
        r"|XDG_(CACHE_HOME|CONFIG_(HOME|DIRS)|DATA_(HOME|DIRS)|STATE_HOME|RUNTIME_DIR"
        r"|SESSION_(ID|TYPE|CLASS|DESKTOP)|CURRENT_DESKTOP|SEAT|VTNR)|SSH_TTY|SSH_CLIENT|SSH_CONNECTION|SSH_AUTH_SOCK|DEBIAN_FRONTEND|MANPATH|INFOPATH",
        storage=Storage.VALUE,
        reason="folders, the terminal and the locale of the session",
    ),
    StoredVariables(
        names=r"PYTHON(PATH|HOME|UNBUFFERED|DONTWRITEBYTECODE|PYCACHEPREFIX|HASHSEED|FAULTHANDLER|WARNINGS"
        r"|IOENCODING|UTF8|NOUSERSITE|OPTIMIZE|STARTUP|BREAKPOINT|SAFEPATH)|VIRTUAL_ENV(_PROMPT)?"
        r"|PYENV_(ROOT|VERSION|SHELL|DIR)|CONDA_(PREFIX(_\d+)?|DEFAULT_ENV|EXE|SHLVL|PYTHON_EXE"
        r"|PROMPT_MODIFIER)|NOX_(CURRENT_SESSION|DEFAULT_VENV_BACKEND)|TOX_(ENV_NAME|ENV_DIR|WORK_DIR)"
        r"|PYTEST_(CURRENT_TEST|VERSION|XDIST_(WORKER|WORKER_COUNT|TESTRUNUID))|COVERAGE_(FILE|RCFILE)"
        r"|LD_(LIBRARY_PATH|PRELOAD)|DYLD_LIBRARY_PATH|CC|CXX|CPP|CFLAGS|CXXFLAGS|LDFLAGS|CPPFLAGS|MAX_JOBS"
        r"|CMAKE_(GENERATOR|PREFIX_PATH|BUILD_PARALLEL_LEVEL)|PKG_CONFIG_PATH"
        r"|(OMP|MKL|OPENBLAS|NUMEXPR|RAYON)_NUM_THREADS",
        storage=Storage.VALUE,
        reason="folders and switches of Python, its environments and compilers",
    ),
    StoredVariables(
        names=r"ASCEND_(HOME_PATH|TOOLKIT_HOME|OPP_PATH|AICPU_PATH|CUSTOM_OPP_PATH|RT_VISIBLE_DEVICES"
        r"|VISIBLE_DEVICES|DEVICE_ID|LAUNCH_BLOCKING|PROCESS_LOG_PATH|WORK_PATH|CACHE_PATH|GLOBAL_LOG_LEVEL"
        r"|GLOBAL_EVENT_ENABLE|SLOG_PRINT_TO_STDOUT|HOST_LOG_FILE_NUM|RUNTIME_OPTIONS)"
        r"|HCCL_(IF_IP|IF_BASE_PORT|SOCKET_IFNAME|CONNECT_TIMEOUT|EXEC_TIMEOUT|BUFFSIZE|DETERMINISTIC"
        r"|WHITELIST_DISABLE|ALGO|OP_EXPANSION_MODE|INTRA_ROCE_ENABLE|INTRA_PCIE_ENABLE)"
        r"|(ATB|ASDOPS|LCCL|LCAL)_[A-Z_]+|TOOLCHAIN_HOME|RANK_TABLE_FILE"
        r"|TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|COMBINED_ENABLE|SOC_VERSION|NPU_SIM_(SOC|CANN|COUNT|MEMORY_GB)"
        r"|VLLM_(USE_V1|USE_MODELSCOPE|TARGET_DEVICE|VERSION|LOGGING_LEVEL|WORKER_MULTIPROC_METHOD"
        r"|ATTENTION_BACKEND|CACHE_ROOT|CONFIG_ROOT)|TORCH_(HOME|LOGS|DEVICE_BACKEND_AUTOLOAD|NPU_[A-Z_]+)"
        r"|PYTORCH_(NPU|CUDA)_ALLOC_CONF|TRITON_(CACHE_DIR|INTERPRET)|CUDA_(HOME|VISIBLE_DEVICES)"
        r"|(NCCL|GLOO|TP)_SOCKET_IFNAME",
        storage=Storage.VALUE,
        reason="switches, device numbers and folders of CANN, torch and vLLM",
    ),
    StoredVariables(
        names=r"NPU_MATRIX_(MATRIX|STATE|CACHE|CHECKOUT|REPORTS|PROFILE|JOBS|MIRRORS|FETCH|FETCH_FILE|FETCHED_MIRRORS|REFERENCES|LEASES|CELL_MEMORY"
        r"|CELL_SHM|ENGINE|WAIT|EXECUTOR|NODES|RUNNER|KEY|TASK|RUN|DEVICE_FACTS|EXPECTED|REHEARSAL"
        r"|FOUND_PYTHON|TEST_WORKERS)",
        storage=Storage.VALUE,
        reason="settings of this program that are names, numbers or folders",
    ),
    StoredVariables(
        names=r"NPU_MATRIX_(RAY_ADDRESS|BASE_IMAGE|[A-Z_]+_ROOT)",
        storage=Storage.URLS,
        reason="settings of this program that may be addresses",
    ),
    StoredVariables(
        names=r"PIP_(CERT|CONFIG_FILE|CACHE_DIR|TIMEOUT|DEFAULT_TIMEOUT|RETRIES|NO_INDEX"
        r"|DISABLE_PIP_VERSION_CHECK|NO_CACHE_DIR|NO_INPUT|REQUIRE_VIRTUALENV|PREFER_BINARY|ONLY_BINARY"
        r"|NO_BINARY|PRE|QUIET|VERBOSE|PROGRESS_BAR|USE_FEATURE|KEYRING_PROVIDER|ROOT_USER_ACTION"
        r"|BREAK_SYSTEM_PACKAGES|NO_DEPS|REQUIRE_HASHES|CONSTRAINT|NO_COLOR|NO_WARN_SCRIPT_LOCATION)",
        storage=Storage.VALUE,
        reason="numbers, switches and paths; the content of the files is not stored",
    ),
    StoredVariables(
        names=r"UV_(CACHE_DIR|CONCURRENT_[A-Z]+|CREDENTIALS_DIR|HTTP_(TIMEOUT|RETRIES|CONNECT_TIMEOUT)"
        r"|INDEX_STRATEGY|KEYRING_PROVIDER|LINK_MODE|NATIVE_TLS|OFFLINE|PYTHON"
        r"|PYTHON_(INSTALL_DIR|DOWNLOADS|PREFERENCE)|SYSTEM_CERTS|NO_CONFIG|NO_PROGRESS|NO_CACHE|NO_INDEX"
        r"|CONFIG_FILE|COMPILE_BYTECODE|PROJECT_ENVIRONMENT|EXCLUDE_NEWER|RESOLUTION|PRERELEASE)",
        storage=Storage.VALUE,
        reason="numbers, switches and folders of uv",
    ),
    StoredVariables(
        names=r"PIP_(INDEX_URL|EXTRA_INDEX_URL|PYPI_URL|FIND_LINKS|PROXY|INDEX|TRUSTED_HOST)"
        r"|UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|PUBLISH_URL|PYTHON_INSTALL_MIRROR"
        r"|PYPY_INSTALL_MIRROR)|(HTTPS?|ALL|FTP|NO)_PROXY|(https?|all|ftp|no)_proxy|HF_ENDPOINT"
        r"|DOCKER_HOST|CONTAINER_HOST|RAY_ADDRESS|KUBERNETES_(SERVICE|PORT)[A-Z0-9_]*",
        storage=Storage.URLS,
        reason="addresses that say which index, mirror, proxy or service was meant",
    ),
    StoredVariables(
        names=r"SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_(CAINFO|CAPATH|NO_VERIFY)"
        r"|NODE_EXTRA_CA_CERTS|[A-Z0-9_]+_CA_(BUNDLE|CERTS|CERTS_FILE)|DOCKER_(CONFIG|TLS_VERIFY|CERT_PATH)"
        r"|CONTAINERS_CONF|CONTAINERS_STORAGE_CONF|NETRC|HF_(HOME|HUB_CACHE|HUB_OFFLINE|DATASETS_CACHE"
        r"|HUB_ENABLE_HF_TRANSFER|HUB_DISABLE_[A-Z_]+|HUB_DOWNLOAD_TIMEOUT)|TRANSFORMERS_(CACHE|OFFLINE)"
        r"|RAY_(TMPDIR|USE_TLS|DEDUP_LOGS|DISABLE_[A-Z_]+|NAMESPACE|JOB_ID|NODE_ID|memory_[a-z_]+|EXPERIMENTAL_[A-Z_]+)"
        r"|TOKENIZERS_PARALLELISM|WANDB_(MODE|DIR|PROJECT|ENTITY|SILENT)|HYDRA_FULL_ERROR",
        storage=Storage.VALUE,
        reason="switches, and paths of files; the content of the files is not stored",
    ),
    StoredVariables(
        names=r"GIT_CONFIG_(COUNT|GLOBAL|SYSTEM|NOSYSTEM)|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)"
        r"|GIT_(TERMINAL_PROMPT|DIR|WORK_TREE|INDEX_FILE|PAGER|EDITOR|EXEC_PATH|TRACE)",
        storage=Storage.VALUE,
        reason="counts, switches, paths, and what git stores in every commit",
    ),
    StoredVariables(
        names=r"GIT_CONFIG_KEY_\d+",
        storage=Storage.URLS,
        reason="names of git settings, which may contain an address; their values are not stored",
    ),
    StoredVariables(
        names=r"CI|CONTINUOUS_INTEGRATION|BUILD_(ID|NUMBER)|RUNNER_(OS|ARCH|NAME|TEMP|TOOL_CACHE|WORKSPACE"
        r"|ENVIRONMENT|DEBUG)|GITHUB_(ACTIONS?|ACTION_PATH|ACTION_REPOSITORY|ACTION_REF|ACTOR(_ID)?|API_URL"
        r"|BASE_REF|ENV|EVENT_NAME|EVENT_PATH|GRAPHQL_URL|HEAD_REF|JOB|OUTPUT|PATH|REF(_NAME|_PROTECTED|_TYPE)?"
        r"|REPOSITORY(_ID|_OWNER|_OWNER_ID)?|RETENTION_DAYS|RUN_(ATTEMPT|ID|NUMBER)|SERVER_URL|SHA|STATE"
        r"|STEP_SUMMARY|TRIGGERING_ACTOR|WORKFLOW(_REF|_SHA)?|WORKSPACE)",
        storage=Storage.VALUE,
        reason="default variables that GitHub documents; its tokens have other names",
    ),
)
_PATTERNS = tuple((re.compile(one.names), one.storage) for one in STORED)
_CREDENTIAL_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|AUTH|COOKIE|(^|[_.-])(KEY|PASS|PW)([_.-]|$)|APIKEY",
    re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def storage_of(name: str) -> Storage:
    """What may be stored of the environment variable `name`."""
    return next((storage for pattern, storage in _PATTERNS if pattern.fullmatch(name)), Storage.NAME)


def is_credential_name(name: str) -> bool:
    """Whether a name says that its value is a credential, so that even a short or simple value is masked."""
    return _CREDENTIAL_NAME.search(_CAMEL_CASE.sub("_", name)) is not None


def stored_value(name: str, value: str) -> str | None:
    """What may be stored of a variable: its value, its addresses without credentials, or None."""
    storage = storage_of(name)
    if storage is Storage.NAME:
        return None
    return redact_addresses(value) if storage is Storage.URLS else redact_text(value)


def redact_addresses(value: str) -> str:
    """A list of addresses, separated by spaces or commas, without credentials, queries and fragments."""
    if "@" in value and len(value.split()) == 1 and value.count("://") < 2:
        # One address, whose password may contain any character.
        start, scheme, rest = value.rpartition("://")
        value = f"{start}{scheme}{MASK}@{rest.rpartition('@')[2]}" if "@" in rest else value
    without_users = NO_SCHEME.sub(f"{MASK}@", redact_text(value))
    return re.sub(r"[^\s,]*://[^\s,]+", lambda match: _redacted_entry(match[0]), without_users)


def _redacted_entry(entry: str) -> str:
    """An address, which may have a name in front of it: `name=https://...`."""
    name, equals, url = entry.partition("=") if re.match(r"[\w.-]+=", entry) else ("", "", entry)
    redacted = redact_url(url)
    for token in () if url.startswith("file:") else token_segments(redacted):
        redacted = redacted.replace(token, MASK)
    return f"{name}{equals}{redacted}"
