"""Hugging Face, optional: the benchmarks use synthetic data and need no token."""

from __future__ import annotations

from llmb_common.secrets import Secret

_WHO_AM_I = "https://huggingface.co/api/whoami-v2"
_SECONDS = 5


def check_token(token: Secret) -> str:
    """What is wrong with a token, or an empty string: also when Hugging Face cannot be reached from here."""
    value = token.reveal()
    if not value.isascii() or any(c.isspace() for c in value):
        return "this is no token: it has a space or a strange character in it"
    import requests

    try:
        answer = requests.get(_WHO_AM_I, headers={"Authorization": f"Bearer {value}"}, timeout=_SECONDS)
    except requests.RequestException:
        return ""
    return "Hugging Face does not know this token; copy it again or leave it out" if answer.status_code == 401 else ""
