"""Finds last lines of a log that read like a failure, where no signature or exception says what failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.verdict.triage.error_lines import GAVE_UP, PRINTED_ANSWER, RETRIED, SAMPLE_FIELD
from harness.verdict.triage.stack_trace import normalised

# A count or a rate of errors that is zero.
NONE_OF_THEM = r"(?![^:\uff1a=]{0,20}[:\uff1a=]\s*0(?:\.0*)?%?\s*(?:$|[,;\uff0c]))"
# What happened to one sample, prompt or request of many, and was counted or got a reward.
ONE_OF_MANY = (
    r"(?:\b(?:samples?|items?|prompts?|questions?|problems?|rows?|examples?|instances?|responses?|answers?"
    r"|completions?|predictions?)[ #:=]{1,3}\d|\breward\W{1,3}0\b|\b\d+ (?:samples|predictions|answers)\b)"
)
# "error analysis", "error rate": not an error.
NO_ERROR = r"(?![ _-](?:analys[ie]s|rates?|bars?|margins?|estimates?|statistics|counts?|budget|tolerance)\b)"
# Lines that count as errors wherever they are after the last progress.
SUSPICIOUS = re.compile(
    rf"(?:^|\s)(?:error|fatal|panic)\b{NO_ERROR}{NONE_OF_THEM}[^:]{{0,40}}:"
    r"|^\w+(?:Error|Exception|Interrupt)\b|(?:^|[\]>|):] ?)\W{0,4}value error, "
    # Behind a prefix that is not known only what stands alone, or says what could not be done.
    r"|[\]>|):] ?\w+(?:Error|Exception)\s*$|[\]>|):] ?failed to \w"
    r"|^assert\b|^Exception in thread"
    r"|\b(?:cannot import name|no module named|undefined symbol|unexpected keyword argument)\b"
    r"|\b(?:cannot find|command not found|permission denied|no space left|killed|aborted|can't open file)\b"
    # Hydra prints these after every error.
    r"|^\s*(?:full_key|object_type|reference_type)[:=]|\bHYDRA_FULL_ERROR=1 for a complete\b"
    # make, pytest, ninja, the kernel's loader, Kubernetes, schedulers, shells that print a status.
    r"|^make(?:\[\d+\])?: \*\*\* |\bbuild stopped\b"
    rf"|^failed\b{NONE_OF_THEM}(?!.{{0,120}}{ONE_OF_MANY})"
    r"|\bexec format error\b|\bexec user process caused\b"
    r"|\b(?:Err)?ImagePull(?:BackOff)?\b|\bback-?off\b|\bevicted\b|\breason\W{1,3}error\b"
    r"|\b(?:status|state|phase|conclusion)\W{1,4}(?:failed|failure|error|aborted|crashed)\b"
    r"|^(?:the )?(?:job|run|task|training|step|stage)\b.{0,80}\b(?:failed|crashed|did not succeed|preempted"
    r"|cancell?ed|interrupted|was stopped|stopped:)"
    r"|\b(?:rc|ret|return ?code|exit ?code|status)\s?[=:]\s?-?[1-9]\d{0,2}\s*$"
    # What a shell says of a signal, a terminal of Ctrl-C, and multiprocessing before a traceback that is cut.
    r"|^(?:hangup|terminated|quit|alarm clock|user defined signal [12])\s*$|^\^[C\\]|^process \S{1,80}:\s*$"
    rf"|(?<!没有)(?<!无)(?:失败|错误|异常){NONE_OF_THEM}",
    re.IGNORECASE,
)
#: How many lines of a log without progress may say why it ends.
AT_THE_END = 5
#: What programs say of a thing that did not work. A job that works says it too, in options, counts and
#: conditions: there it is part of a longer name, has a value, or is denied.
_FAILURE_WORDS = re.compile(
    r"(?<![\w/.'\"=:-])(?<!\bno )(?<!\bnot )(?<!\bwithout )(?<!\bif )(?<!\bany )(?<!\bfor )(?<!\bon )"
    r"(?:can ?not|can't|could ?n[o']t|could not|unable|fail(?:s|ed|ures?)?|invalid|illegal|incompatible|"
    r"unsupported|unsatisfiable|mismatch(?:ed|es)?|missing|refused|denied|rejected|time(?:d |-)?out|"
    r"out ?of ?(?:memory|range|bounds)|corrupt(?:ed|ion)?|conflicts?|exceptions?|errors?|abort(?:ed|s)?|"
    r"killed|terminated|dead(?:lock)?|died|crash(?:ed)?|overflow(?:ed)?|unexpectedly|unknown|undefined|"
    r"unrecognized|unresolved|unavailable|broken pipe|recursion depth exceeded|already in use|nan|"
    r"upgrade your|too (?:many open|old|new)|stale file|has no attribute|but found|but you(?:'ll)? have|"
    r"no (?:such|matching|space|route|module|solution|(?:npu )?devices?)|does not (?:exist|match|apply)|"
    r"not (?:an? supported|supported|available|visible|activated|defined|found|compatible|installed)|"
    r"requires? a (?:newer|different)|should be the same|exit status [1-9]|returned [1-9]\d{0,2} exit status)"
    # Not an option, a count or a metric.
    r"(?![\w/'\"=-]|\.\w|\s?[:=]\s?(?:[-+\d.]+|true|false|none|null|\[|\{)\s*(?:$|[,;]))"
    r"|\b(?:lost connection|connection (?:was )?(?:reset|lost|closed by peer))\b"
    r"|\b(?:preempted by (?:the )?scheduler)\b"
    r"|\b(?:is|became|are) (?:[-+]?inf(?:inite)?|not finite)\b"
    r"|\w(?:Error|Exception|OutOfMemory)\s*$|\bcore dumped\b|name or service not known|mismatched input"
    r"|(?:无法|不支持|不存在|超时|缺少|未找到|找不到|被拒绝|崩溃|不匹配|不兼容)",
    re.IGNORECASE,
)
# "0 of 128 samples failed", "no invalid samples", "found 0 errors", "number of failed requests: 0".
_NONE_FAILED = re.compile(
    r"(?:^|[,;:(\[]\s?|\bfound )(?:0|no|none|zero)(?: of(?: the)? \d{1,9})?(?: \w{1,20}){0,2}"
    r" (?:failed|errors?|invalid)\b"
    r"|\b(?:failed|errors?|invalid|timeouts?)(?: \w{1,20}){1,3}\s?[:=]\s?0(?:\.0*)?%?\s*$",
    re.IGNORECASE,
)
# What the program itself goes on after: `Loss scale overflow, skipping step 1`.
_GOES_ON = re.compile(
    r"\b(?:skipping (?:this |the )?(?:step|import|sample|batch|item)|skip the (?:step|update)"
    r"|ignoring|continuing)\b",
    re.IGNORECASE,
)


_PRINTED_ANSWER = re.compile(PRINTED_ANSWER)
_ONE_OF_MANY = re.compile(ONE_OF_MANY, re.IGNORECASE)
# The last cell of a table is zero: `| Failed Requests | total | 0 |`.
_ZERO_IN_TABLE = re.compile(r"[|\u2502].{0,200}[|\u2502]\s*0(?:\.0+)?\s*(?:ms|%)?\s*[|\u2502]\s*$")
# An evaluation or a benchmark that shows what it measured: a metric, a row of numbers, where its report is.
_RESULT = re.compile(
    r"^[\s|\u2502{'\"]{0,4}(?:[\w@/.() :{'\"-]{0,60}\b)?(?:accuracy|acc|pass@\d+|exact_match|f1|bleu"
    r"|extractive_match|rouge\w{0,3}|win_?rate|perplexity|mean score|TTFT|TPOT|spearman|ndcg\S{0,6})"
    r"\b[^\w\n]{1,40}(?:\w{1,12}[^\w\n]{1,20})?\d"
    r"|^\s*\S{1,80}(?:\s{2,}-?\d+(?:\.\d+)?){3,}\s*$|\breport (?:written|saved) to \S",
    re.IGNORECASE,
)

# What a job that works says between its steps: what it does or has done, a bar of progress, a count of zero.
_AT_WORK = re.compile(
    r"\b(?:sav(?:e[ds]?|ing)|load(?:s|ed|ing)?|writ(?:e|es|ing|ten)|upload(?:ed|ing)|download(?:ed|ing)"
    r"|delet(?:ed|ing)|remov(?:ed|ing)|using|start(?:s|ed|ing)?|begin(?:s|ning)?|creat(?:ed|ing)"
    r"|initiali[sz](?:ed|ing)|finish(?:es|ed|ing)?|complet(?:e|es|ed|ing)|done|success\w*|succeeded|passed"
    r"|closing|closed|destroying|releas(?:ed|ing)|updat(?:ed|ing)|generat(?:ed|ing)|evaluat(?:ed|ing)"
    r"|wandb|swanlab|mlflow|view run|waking|sleep|warm(?:ed|ing)?[ -]?up|captur(?:ed|ing)"
    r"|ends?|ended|steps?|epochs?|took|shapes?|version|kept|contains|early stopping|from scratch|total|len"
    r"|checkpoints?|datasets?|dataloader|batch(?:es)?|rewards?|answers?|learning rate|lr|sync\w*|broadcast)\b"
    r"|\b(?:memory (?:allocated|reserved)|_?warnings\.warn\()|<\|\w+\|>|global_step"
    r"|(?:完成|成功|保存|加载|开始|没有|结束)|\d{1,3}%\|"
    r"|\b(?:0|no|none) (?:failed|failures?|errors?|invalid)\b",
    re.IGNORECASE,
)
# What is done with the results of a job, or says where they are, and how a shell or Ray says that it is over.
_AFTERWARDS = re.compile(
    r"^(?!.{0,200}: )\W{0,4}(?:merg(?:ed|ing)|convert(?:ed|ing)|push(?:ed|ing)|cop(?:ied|ying)"
    r"|archiv(?:ed|ing)|export(?:ed|ing)|compress(?:ed|ing))\b"
    r"|^\W{0,4}(?:results?|outputs?|logs?|reports?|files?)\b.{0,40} (?:in|at|under|to) \S*/\S+\s*$"
    r"|^\++ (?!exit\b)\S|\bSUCC \S+\.py:\d+ -- |^\W{0,4}(?:good ?bye|bye|log ?out|all (?:good|fine|ok))\W*$",
    re.IGNORECASE,
)
# `+ exit 0`, `Exit status 0`.
_EXIT_ZERO = re.compile(
    r"^\W{0,4}(?:exit|return)(?:ed)?(?: with)?(?: (?:code|status))?\W{1,3}0\s*$", re.IGNORECASE
)
# A line of settings, metrics or counts only: `retries: 3, skip=False, 'x': None`.
_VALUE = r"(?:[-+]?[\d.]+(?:e[-+]?\d+)?%?|nan|inf|true|false|none|null|\S{0,2}/\S+|['\"][^'\"]{0,200}['\"])"
_SETTINGS = re.compile(
    rf"[\s{{(]*(?:['\"]?[\w./@\[\]-]+(?: \w+){{0,3}}['\"]?\s?[:=\uff1a]\s?{_VALUE}[\s,;\uff0c)}}-]*)+$",
    re.IGNORECASE,
)
# The value of something, whatever its name.
_NAMED_VALUE = re.compile(rf"[\w'\"\])][:=\uff1a]\s?(?:{_VALUE}|[\[{{(].*)[\s,;)}}]*$", re.IGNORECASE)
# A value of this may say what failed.
_TROUBLE = re.compile(
    r"time[d_ -]{0,2}out|wait|connect|socket|lost|hang|hung|stuck|fail|err(?:or|no|code)|abnormal|exit|kill"
    r"|dead|abort|reason|fault|alarm|exception|detail|超时|等待|连接|异常",
    re.IGNORECASE,
)
# A line that ends with what was measured: a duration, an amount of memory, the last cell of a row.
_MEASURED = re.compile(
    r"\d\s?(?:h|hours?|m|min(?:ute)?s?|s|sec(?:ond)?s?|ms|[kmgt]i?b|bytes|%|\w{1,12}/s(?:ec)?)[\s).,;]*$"
    r"|^[a-z][\w /-]{0,40}\b(?:loss|reward|score|accuracy|throughput|entropy)\b[\w /-]{0,40} -?\d+\.\d+\s*$"
    r"|[|\u2502]\s*[-+]?\d+\.\d+\s*%?\s*[|\u2502]?\s*$",
    re.IGNORECASE,
)
# A line that is only a time.
_TIME = re.compile(
    r"(?:[\d\s:.,/+-]|\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\b"
    r"|\b(?:[ap]m|utc|gmt|c[es]?t|cst)\b|[年月日时分秒])+",
    re.IGNORECASE,
)
# An amount of this may be why a job cannot go on.
_NEEDED = re.compile(
    r"\b(?:not?|never|nothing|without|only|just|still|again|since|ago|for|after|within|every|each|idle|less"
    r"|tr(?:y|ies|ied|ying)|alloc\w*|need\w*|requir\w*|request\w*|exceed\w*|limits?|too|left|remain\w*|free"
    r"|available|capacity|more|than|larger|smaller|insufficient|at (?:lea|mo)st|(?:max|min)imum|stall\w*)\b"
    r"|不|仅|只|剩余|需要|超过|申请",
    re.IGNORECASE,
)
# The number of an error is no setting.
_ERROR_NUMBER = re.compile(
    r"(?:(?:err|fail|fault|alarm|exception|code|status)\w*|\bret|\brc)['\"]?\s?[:=\uff1a]\s?['\"]?"
    r"(?:0x[0-9a-f]*[1-9a-f]|-?0*[1-9])",
    re.IGNORECASE,
)
# A server warns of single requests and goes on.
_OF_A_REQUEST = re.compile(r"\brequests?\b", re.IGNORECASE)
_FEWEST_CHARACTERS = 4


def unusual_lines(
    tail: Sequence[tuple[int, str]], progress: int, *, warning: tuple[int, str] | None = None
) -> list[tuple[int, str]]:
    """The lines after the last progress that are unlike any line before it, and do not say that a job works.

    They may be of a failure whose text is cut or not known, so the job is not shown to work any more.
    warning: the very last line of the log, if it is a warning; it counts if it says that something failed.
    """
    if warning and _FAILURE_WORDS.search(warning[1]) and not _OF_A_REQUEST.search(warning[1]):
        tail = [*tail, warning]
    usual = {normalised(text) for number, text in tail if number <= progress}
    shown = max((number for number, text in tail if _RESULT.search(text)), default=0)
    return [
        (number, text)
        for number, text in tail
        if number > max(progress, shown)
        and any(map(str.isalpha, text))
        and sum(map(str.isalnum, text)) >= _FEWEST_CHARACTERS
        and not _AT_WORK.search(text)
        and not _is_value(text)
        and not _is_measured(text)
        and not _is_afterwards(text)
        and not _PRINTED_ANSWER.match(text)
        and not SAMPLE_FIELD.match(text)
        and not _goes_on(text)
        and not _ONE_OF_MANY.search(text)
        and not _NONE_FAILED.search(text)
        and not _ZERO_IN_TABLE.search(text)
        and normalised(text) not in usual
    ]


def _is_value(text: str) -> bool:
    """Whether a line says the value of a setting, a metric or a count, and no number of an error."""
    if _ERROR_NUMBER.search(text):
        return False
    return bool(_SETTINGS.match(text) or (_NAMED_VALUE.search(text) and not _TROUBLE.search(text)))


def _is_measured(text: str) -> bool:
    """Whether a line is a time, or ends with a measured amount that is no reason to stop."""
    others = (_TROUBLE, _NEEDED, _FAILURE_WORDS, _ERROR_NUMBER)
    is_amount = _MEASURED.search(text) and not any(pattern.search(text) for pattern in others)
    return bool(is_amount or _TIME.fullmatch(text.strip()))


def _is_afterwards(text: str) -> bool:
    """Whether a line says what follows a job that worked, and of nothing that was missing or waited for."""
    if _EXIT_ZERO.match(text):
        return True
    return bool(_AFTERWARDS.search(text)) and not (_TROUBLE.search(text) or _NEEDED.search(text))


def suspicious_lines(tail: Sequence[tuple[int, str]], progress: int, *, ended: bool) -> list[tuple[int, str]]:
    """The lines after the last progress that look like errors, with their numbers.

    tail: the last lines of a log with their numbers, without citations, warnings and information. progress:
    the line of the last progress, 0 if there is none. ended: whether the log says that the job ended well.
    Then only what is certainly an error counts; else also a line that says that something did not work, if no
    line before the last progress says the same, and no evaluation shows a result after it. Where nothing
    shows progress, only the very last lines can; the lines after a result do not count there, since an
    evaluation mentions single samples, and what is known of the job is then nothing.
    """
    shown = max((number for number, text in tail if _RESULT.search(text)), default=0)
    ended = ended or (not progress and shown > 0)
    last = max((number for number, _ in tail), default=0)
    usual = {normalised(text) for number, text in tail if number <= progress}
    return [
        (number, text)
        for number, text in tail
        if number > progress
        and not _PRINTED_ANSWER.match(text)
        and not SAMPLE_FIELD.match(text)
        and (
            SUSPICIOUS.search(text)
            or (
                not ended
                and number > shown
                and (progress or number > last - AT_THE_END)
                and _FAILURE_WORDS.search(text)
                and not _NONE_FAILED.search(text)
                and not _goes_on(text)
                and not _ONE_OF_MANY.search(text)
                and not _ZERO_IN_TABLE.search(text)
                and normalised(text) not in usual
            )
        )
    ]


def _goes_on(text: str) -> bool:
    """Whether a line says that the program does without what did not work, or tries it again."""
    return bool(_GOES_ON.search(text) or (RETRIED.search(text) and not GAVE_UP.search(text)))
