"""Host lists mean what they mean to Slurm, cross-checked against ClusterShell."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet

from llmb_common.base.errors import RequestError
from llmb_common.base.hostlist import compress, expand, expand_known
from support.properties import given, st

LONG = "9" * 5000
"""More digits than Python reads as a number."""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[9-10]", ["n9", "n10"]),
        ("n[09-10]", ["n09", "n10"]),
        ("rack[1-2]n[01-02]-ib", ["rack1n01-ib", "rack1n02-ib", "rack2n01-ib", "rack2n02-ib"]),
        ("a,b[1,3-4],a", ["a", "b1", "b3", "b4"]),
        ("login-1", ["login-1"]),
        ("", []),
        ("(null)", []),
        ("None assigned", []),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n1]",
        "n[2-1]",
        "n[a-b]",
        "n[1-2][",
        "n[]",
        "a,,b",
        "n[1,]",
        "a b",
        "n[[1-2]-3]",
        "n[1-999999999]",
        f"n[{LONG}]",
        f"n[1-{LONG}]",
    ],
)
def test_text_that_is_not_a_host_list_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        expand(text)


@pytest.mark.parametrize(
    ("text", "shown"), [("n1,a b,n2", "'a b' in 'n1,a b,n2'"), ("a b", "'a b'"), ("n[2-1]", "'[2-1]' in 'n[2-1]'")]
)
def test_the_part_that_is_none_is_shown(text: str, shown: str) -> None:
    with pytest.raises(RequestError) as caught:
        expand(text)
    assert caught.value.message.startswith(f"{shown} ")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n10", "n9", "n8"], "n[8-10]"),
        ([f"rack1n{i:02d}-ib" for i in range(1, 13)], "rack1n[01-12]-ib"),
        (["b", "a", "a"], "a,b"),
        (["n7"], "n7"),
        (["n7", "n07"], "n7,n07"),
        ([], ""),
        ([f"n{LONG}"], f"n{LONG}"),
    ],
)
def test_compress(names: list[str], text: str) -> None:
    assert compress(names) == text


range_text = st.one_of(
    st.integers(0, 120).map(str),
    st.integers(0, 99).map(lambda n: f"{n:02d}"),
    st.tuples(st.integers(0, 99), st.integers(0, 9)).map(lambda t: f"{t[0]}-{t[0] + t[1]}"),
    st.tuples(st.integers(0, 80), st.integers(0, 9)).map(lambda t: f"{t[0]:03d}-{t[0] + t[1]:03d}"),
)
bracket = st.lists(range_text, min_size=1, max_size=3).map(lambda items: f"[{','.join(items)}]")
name = st.lists(st.one_of(st.sampled_from(["n", "rack", "-ib", "gpu-a", "x"]), bracket), min_size=1, max_size=4).map(
    lambda parts: "h" + "".join(parts)
)
# ClusterShell has its own rules for a bracket next to digits or another bracket; Slurm just forms the product.
host_list = st.lists(name.filter(lambda text: "][" not in text), min_size=1, max_size=3).map(",".join)


@given(host_list)
def test_expand_agrees_with_clustershell(text: str) -> None:
    assert set(expand(text)) == set(NodeSet(text))


@given(host_list)
def test_compress_keeps_every_name(text: str) -> None:
    names = set(expand(text))
    short = compress(names)
    assert set(expand(short)) == names
    assert set(NodeSet(short)) == names


def test_a_damaged_list_of_a_record_names_nobody() -> None:
    assert expand_known("n[1-2]") == ["n1", "n2"]
    assert expand_known("n[1-") == []
