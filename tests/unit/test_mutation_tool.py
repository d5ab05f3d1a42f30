"""tests/mutate.py: which changes it makes, which tests it asks, and what it says of a survivor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation.excused import Excuses
from mutation.mapping import Coverage, map_tests
from mutation.mutants import Mutant, mutants_of
from mutation.run import ENGINES, LONG, default_tests
from mutation.shell import shell_files, shell_mutants_of
from mutation.trees import Trees

TESTS = Path(__file__).resolve().parents[1]


def changes(tmp_path: Path, code: str) -> list[str]:
    (tmp_path / "m.py").write_text(code)
    return [mutant.change for mutant in mutants_of(tmp_path, "m.py")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = a < b", ["a < b -> a <= b"]),
        ("x = time() > a", ["time() > a -> time() <= a"]),
        ("x = a is None", ["a is None -> a is not None"]),
        ("x = a and b", ["a and b -> a or b"]),
        ("x = not a", ["not a -> a"]),
        ("x = a + b", ["a + b -> a - b"]),
        ("x = O_RDWR | O_EXCL", ["O_RDWR | O_EXCL -> O_RDWR"]),
        ("x = a if b else c", ["a if b else c -> c if b else a"]),
        ("x = 3", ["3 -> 4"]),
        ("x = True", ["True -> False"]),
        ("x = 'word'", ["'word' -> 'wordX'"]),
        ("x = quote(a)", ["quote(a) -> a"]),
        ("x = f'a {quote(b)}'", ["f'a {quote(b)}' -> f'a {b}'"]),
        ("f(a, mode=b)", ["f(a, mode=b) -> pass", "f(a, mode=b) -> f(a)"]),
        ("if a:\n    x = b", ["if a -> if not a"]),
    ],
)
def test_a_mutant_is_one_small_change(tmp_path: Path, code: str, expected: list[str]) -> None:
    assert changes(tmp_path, code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "'''A docstring.'''",
        "x = 'words of a message'",
        "x: Literal['a'] = y",
        "from a import b",
        "__all__ = ('a', 'b')",
        "while True:\n    x = y",
        "x = open(a, encoding=b)",
        "X: TypeAlias = Literal['a', 'b']",
        "x = os.O_RDONLY | os.O_CLOEXEC",
        "LEFTOVER_SECONDS = 3600",
        "x = ThreadPoolExecutor(4, 'name')",
        "time.sleep(1)",
    ],
)
def test_what_no_test_should_see_is_left_alone(tmp_path: Path, code: str) -> None:
    assert [change for change in changes(tmp_path, code) if "True" not in change] == []


def test_the_rest_of_the_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("# größe\ndef f(a):\n    return g('ü', a < 1)  # why\n")
    texts = [mutant.text for mutant in mutants_of(tmp_path, "m.py")]
    assert "# größe\ndef f(a):\n    return g('ü', (a <= 1))  # why\n" in texts


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("((a < 99)) || return 0", ["<= 99)) ||", "< 99)) &&", "< 100))", "|| return 1", "(left out)"]),
        ("x=$((n * 2))  # 3 times", ["$((n / 2))", "$((n * 3))", "(left out)"]),
        ("x=${list[n - 1]}", ["[n + 1]", "[n - 2]", "(left out)"]),
        ("if [[ -n $a && $b == c ]]; then d; fi", ["-z $a", "||", "!= c", "(left out)"]),
        ("((a && ! b))", ["||", "&& b", "(left out)"]),
        ("kill a 2> /dev/null || true", ["kill a 2> /dev/null", "(left out)"]),
    ],
)
def test_a_mutant_of_a_shell_file_is_one_too(tmp_path: Path, code: str, expected: list[str]) -> None:
    (tmp_path / "m.sh").write_text(f"# shellcheck shell=bash\nf() {{\n  {code}\n}}\n")
    mutants = shell_mutants_of(tmp_path, "m.sh")
    assert {(mutant.place, mutant.line, mutant.before) for mutant in mutants} == {
        ("m.sh f", 3, code.partition("  #")[0])
    }
    for mutant, part in zip(mutants, expected, strict=True):
        assert part in mutant.after
        assert mutant.text.startswith("# shellcheck shell=bash\nf() {\n")


@pytest.mark.parametrize(
    "code",
    [
        "# a 1 && b",
        "local a b",
        "readonly a",
        "sleep 3",
        "sed -E 's,a && 1,b,'",
        'a "1 < 2"',
        "else",
        "echo [0-9]* $1 ${!2} 2>&1",
        "a < 'b c'",
    ],
)
def test_what_is_no_code_of_a_shell_file_is_left_alone(tmp_path: Path, code: str) -> None:
    (tmp_path / "m.sh").write_text(f"{code}\n")
    assert [mutant.after for mutant in shell_mutants_of(tmp_path, "m.sh")] in ([], ["(left out)"])


def test_equal_scripts_of_recipes_are_changed_together_and_asked_of_the_tests_of_any(tmp_path: Path) -> None:
    texts = {"a/launch.sh": "run x\n", "b/launch.sh": "run x\n", "c/launch.sh": "run y\n"}
    tests = {"test_a.py": "a/launch.sh", "test_b.py": "b/launch.sh", "test_c.py": "c/launch.sh"}
    for name, text in (texts | tests).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {text}" if name in tests else text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert shell_files(tmp_path) == ["a/launch.sh", "c/launch.sh"]
    (mutant,) = shell_mutants_of(tmp_path, "a/launch.sh")
    assert mutant.files == ("a/launch.sh", "b/launch.sh")
    coverage = Coverage()
    coverage.add({"seconds": {f"{name}::t": 0.0 for name in tests}, "failed": [], "lines": {}}, tmp_path)
    assert coverage.tests_of(mutant) == ["test_a.py::t", "test_b.py::t"]


def test_training_code_is_asked_of_training_tests_where_the_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENGINES:
        monkeypatch.setenv(name, sys.executable)
    root = TESTS.parent
    assert default_tests(root, ["shell", "llmb_common.machine.files"]) == ["tests/unit"]
    first, *training = default_tests(root, ["shell", "llmb_train.settings"])
    assert first == "tests/unit"
    assert "tests/training/test_switches.py" in training
    assert not {f"tests/training/test_{name}.py" for name in LONG} & set(training)
    assert all((root / "tests" / "training" / f"test_{name}.py").is_file() for name in LONG)
    monkeypatch.delenv(ENGINES[1])
    assert default_tests(root, ["llmb_train"]) == ["tests/unit"]


CODE = """LIMIT = 3


def most(values):
    if len(values) > LIMIT:
        print("many", len(values))
    return max(values)
"""
TEST = """import subprocess, sys
from thing.code import most
import helps  # of the repository itself, as tools/ is


def test_here():
    assert most([1, 2]) == 2


def test_in_a_program():
    subprocess.run([sys.executable, "-c", "from thing.code import most; most([1, 2, 3, 4])"], check=True)


def test_that_fails_anyway():
    assert most([1]) == 2
"""


@pytest.mark.exhaustive
def test_survivors_are_shown_with_their_place_and_the_working_tree_stays_as_it_is(tmp_path: Path) -> None:
    code, test = tmp_path / "common" / "thing" / "code.py", tmp_path / "tests" / "unit" / "test_code.py"
    unasked = "def test_that_is_not_asked():\n    assert False\n"
    for path, text in (
        *((code, CODE), (code.with_name("__init__.py"), ""), (test, TEST)),
        (test.with_name("test_other.py"), unasked),
        (tmp_path / "helps.py", ""),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    excused = tmp_path / "tests" / "mutation" / "excused.yaml"
    excused.parent.mkdir()
    excused.write_text("- {where: common/thing/code.py most, change: len(values) -> values, reason: just an example}\n")
    (tmp_path / ".gitignore").write_text(".test\n")
    for command in (
        ["init", "-q"],
        ["add", "--all"],
        ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    # coverage warns of the modules that were not imported.
    foreign = ("PYTEST_", "COVERAGE_", "PYTHONWARNINGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [
            *(sys.executable, str(TESTS / "mutate.py"), "--root", str(tmp_path), "--jobs=1", "--at-least=90"),
            *("--tests", "tests/unit/test_code.py", "thing.code"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "test_code.py::test_that_fails_anyway" in done.stderr
    assert "test_that_is_not_asked" not in done.stderr
    killed = "max(values) -> values"
    assert killed not in done.stdout
    # Executed in a program that a test starts, and by no test itself.
    assert "survived   common/thing/code.py:6 most: 'many' -> 'manyX'   [1 tests]" in done.stdout
    assert "survived   common/thing/code.py:1 : 3 -> 4   [2 tests]" in done.stdout
    assert "len(values) -> values" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("2 excused")
    assert done.returncode == 1, "under the rate that was asked for"
    assert code.read_text() == CODE


def test_an_excuse_is_for_one_change_of_one_function_and_says_when_it_is_out_of_date(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(a):\n    return a < 1\n\n\ndef g(a):\n    return a < 1\n")
    mutants: list[Mutant] = mutants_of(tmp_path, "m.py")
    (tmp_path / "excused.yaml").write_text(
        "- {where: m.py f, change: a < 1 -> a <= 1, reason: never 1}\n"
        "- {where: m.py f, change: a < 2 -> a <= 2, reason: never 2}\n"
        "- {where: other.py f, change: a -> b, reason: of another file}\n"
    )
    excuses = Excuses(tmp_path / "excused.yaml")
    assert [mutant.place for mutant in mutants if excuses.excuse(mutant)] == ["m.py f"]
    assert excuses.stale(mutants) == ["m.py f: a < 2 -> a <= 2"]


def test_an_excuse_without_a_reason_is_none(tmp_path: Path) -> None:
    (tmp_path / "excused.yaml").write_text("- {where: m.py f, change: a -> b, reason: ''}\n")
    with pytest.raises(SystemExit, match="with a reason"):
        Excuses(tmp_path / "excused.yaml")


def test_tests_that_are_not_there_cannot_be_asked() -> None:
    with pytest.raises(SystemExit, match=r"there are no tests in tests/unit/test_none\.py, docs"):
        map_tests(Trees(TESTS.parent, 0), ["tests/unit/test_words.py", "tests/unit/test_none.py", "docs"], print)
