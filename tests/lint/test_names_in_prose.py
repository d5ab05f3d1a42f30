"""Names in prose exist: what docstrings, comments and two pages put between backticks is somewhere in the code."""

from __future__ import annotations

import ast
import builtins
import functools
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pytest

from support.repository import REPOSITORY, our_files

PAGES = ("CONTRIBUTING.md", "docs/architecture.md")
PYTHON_SPAN = re.compile(r"``([^`\n]+)``")
COMMENT_WITH_SPAN = re.compile(r"#.*``")
PAGE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?P<call>\(.*\))?")
WORD = re.compile(r"[A-Za-z_]\w*")

FILE = re.compile(r"[\w.-]+\.(py|sh|sbatch|md|json|jsonl|yaml|yml|toml|txt|in|out|log|cpp|zip|csv|css|js|html)")

OTHER_PROGRAMS = """
    _get_argument _set_megatron_fsdp_overrides all_reduce_perf all_reduce_perf_mpi
    as_mysql_flush_jobs_on_cluster assert_dim_for_fp8_exec AttnFuncWithCPAndQKVOA2A build_sample_idx
    capture_output ChainedOptimizer CheckpointConfig clearenv clocks_event_reasons clocks_throttle_reasons
    context_parallel ensurepip filesystem_async flop_utils get_dummy_wgrad in_proj initialize_ub
    is_first_microbatch job_launcher job_reason_string job_submit limma loadgroup MixedPrecisionConfig
    ModelParallelConfig MoEFlexTokenDispatcher num_microbatches_calculator out_proj parallel_state
    param_and_grad_buffer PREMUL_SUM quantizer report_memory setup_experiment statistics.stdev tmp_path
    training_log TrainingConfig transformer_block TransformerConfig update_main_grads
"""
"""Names in the sources of Megatron, Transformer Engine, NCCL, Slurm, NVIDIA's tools, Python and pytest."""
EXAMPLES = """
    _tp4_cg0 alice CASE engine.json_lines engine.train Huggingface_Hub IBext_v8 llmb_train.NAME
    model.attention_dropout n12 NAME_command qwen rack1n1 rank_NUMBER section_field SPEC steps.exit_after
    steps.waits_from
"""
"""Values, keys in documents, and fixtures."""
KNOWN = frozenset((OTHER_PROGRAMS + EXAMPLES).split())


@dataclass
class Module:
    """What a module's code has, its prose apart."""

    prose: list[tuple[int, str]]
    """Lines of docstrings and comments, each with its number."""
    words: set[str] = field(default_factory=set)
    """Every name, and every word of a text that is no prose."""
    texts: set[str] = field(default_factory=set)
    """The texts that are no prose and one word: keys, fields, options."""
    names: set[str] = field(default_factory=set)
    """What is bound outside functions, in classes too: functions, classes, methods, fields, constants, imports."""
    members: dict[str, set[str]] = field(default_factory=dict)
    """By class, what its body binds, and what its methods set of ``self``."""
    unknown: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, function and name of what a docstring explains and its function does not have."""


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """``tree`` and all nodes below it. Python's own walk takes twice as long, and there are a million."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def bound_by(node: ast.AST) -> set[str]:
    """The names that a statement binds in its own scope, and those that imports in it bring."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    found: set[str] = set()
    for part in nodes_of(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            found.add(part.name)
    return found


def members_of(node: ast.ClassDef) -> set[str]:
    """What a class has: what its body binds, and the attributes of ``self`` that its methods use."""
    found: set[str] = set()
    for statement in node.body:
        found |= bound_by(statement)
        for part in nodes_of(statement):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                found.add(part.attr)
    return found


def words_of(node: ast.AST) -> Iterator[str]:
    """Yields the names in one node of a tree."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, str):
            yield from WORD.findall(value)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, str):
                    yield from WORD.findall(part)


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
EXPLAINED = re.compile(r"(?:^|[.;] )\s*``([a-z_]\w*)``: ", re.MULTILINE)
"""A name at the beginning of a sentence that explains it: a parameter of the function, or a field of its answer."""


def unknown_of(function: FUNCTION, classes: list[ast.ClassDef]) -> Iterator[str]:
    """Yields what the docstring explains and neither ``function`` nor the class around it has."""
    text = ast.get_docstring(function, clean=False) or ""
    explained = EXPLAINED.findall(text)
    if not explained:
        return
    parts = [part for part in nodes_of(function) if not (isinstance(part, ast.Constant) and part.value == text)]
    known = set(chain.from_iterable(map(words_of, parts)))
    around = [node for node in classes if node.lineno < function.lineno <= (node.end_lineno or 0)]
    if around:
        known |= members_of(around[-1])
    for name in explained:
        if name not in known:
            yield name


@functools.cache
def read_module(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = nodes_of(tree)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    module = Module([])
    lines = text.splitlines()
    alone: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            alone.add(id(node.value))
            module.prose += [(number, lines[number - 1]) for number in range(node.lineno, (node.end_lineno or 0) + 1)]
    if COMMENT_WITH_SPAN.search(text):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                module.prose.append((token.start[0], token.string))
    for node in nodes:
        if id(node) in alone:
            continue
        module.words.update(words_of(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            module.texts.add(node.value)
        if isinstance(node, ast.ClassDef):
            module.members[node.name] = members_of(node)
            module.names |= module.members[node.name]
        elif isinstance(node, FUNCTION):
            module.unknown += [(node.lineno, node.name, name) for name in unknown_of(node, classes)]
    for statement in tree.body:
        module.names |= bound_by(statement)
    return module


class Names:
    """All names of the repository, to look one up."""

    def __init__(self) -> None:
        files = our_files()
        self.modules: dict[str, list[Module]] = {}
        self.names = {*dir(builtins), *keyword.kwlist, *KNOWN}
        self.files: set[str] = set()
        self.members: dict[str, set[str]] = {}
        for path in files:
            relative = path.relative_to(REPOSITORY)
            self.names.update(WORD.findall(str(relative)))
            self.files.add(path.name)
            if path.suffix == ".py":
                module = read_module(path)
                self.modules.setdefault(
                    relative.stem if relative.stem != "__init__" else relative.parent.name, []
                ).append(module)
                self.names |= module.names | module.texts
                for name, members in module.members.items():
                    self.members.setdefault(name, set()).update(members)
            elif path.suffix in (".sh", ".json", ".yaml", ".yml", ".toml", ".js", ".c", ".sbatch"):
                self.names.update(WORD.findall(path.read_text(encoding="utf-8", errors="replace")))

    def problem(self, span: str, here: Module | None) -> str:
        """What is wrong with the text between two backticks; empty: nothing, or it is no name."""
        match = NAME.fullmatch(span)
        if match is None or match["path"] in KNOWN or match["path"].partition(".")[0] in KNOWN:
            return ""
        words = here.words if here is not None else set()
        if FILE.fullmatch(span):
            stem = span.partition(".")[0]
            return "" if span in self.files or stem in words or stem in self.names else f"no file {span}"
        first, *rest = match["path"].split(".")
        if first not in words and first not in self.names and first not in self.modules:
            return f"no {first}"
        owner = first
        for part in rest:
            if owner in self.members or owner in self.modules:
                known = self.members.get(owner, set()).union(*(module.names for module in self.modules.get(owner, [])))
                if part not in known and part not in self.modules and part not in words:
                    return f"{owner} has no {part}"
            elif part not in words and part not in self.names:
                return f"no {part}"
            owner = part
        return ""


def stale_names(names: Names) -> Iterator[str]:
    """Yields ``file:line: text: what is wrong`` for each name in prose that is nowhere."""
    for path in our_files():
        relative = path.relative_to(REPOSITORY)
        if path.suffix == ".py":
            module = read_module(path)
            for number, line in module.prose:
                for span in PYTHON_SPAN.findall(line):
                    if problem := names.problem(span, module):
                        yield f"{relative}:{number}: {span}: {problem}"
        elif str(relative) in PAGES:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for span in PAGE_SPAN.findall(line):
                    if problem := names.problem(span, None):
                        yield f"{relative}:{number}: {span}: {problem}"


def unknown_explanations(path: Path) -> Iterator[str]:
    """Yields ``file:line: function: name`` for each name that a docstring explains and its function does not have."""
    for line, function, name in read_module(path).unknown:
        yield f"{path.relative_to(REPOSITORY)}:{line}: {function}: {name}"


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


def test_names_in_prose_exist(names: Names) -> None:
    assert list(stale_names(names)) == []


def test_what_docstrings_explain_is_the_functions_own() -> None:
    paths = [path for path in our_files() if path.suffix == ".py"]
    assert list(chain.from_iterable(map(unknown_explanations, paths))) == []


@pytest.mark.parametrize(
    "stale",
    [
        "group_" + "as_dict",
        "No" + "SuchClass",
        "JobPlan.no_" + "such_field",
        "ranks.no_" + "such",
        "call_of_" + "nothing(1)",
        "no_" + "such.py",
    ],
)
def test_it_sees_names_that_are_gone(names: Names, stale: str) -> None:
    assert names.problem(stale, None)


def test_it_sees_a_parameter_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    module = tmp_path / "module.py"
    module.write_text('def held(new: int) -> int:\n    """The same. ``old``: what it was."""\n    return new\n')
    assert list(unknown_explanations(module)) == ["module.py:1: held: old"]
