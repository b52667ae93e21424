"""The pages, the help texts and the first lines of docstrings use the terms of the field.

Each entry is a word or phrase of the private language that the project once had, and the term to use.
"""

import ast
import re
from pathlib import Path

import typer

from samestep.cli.main import VERBS, application, run_command

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "src" / "samestep", ROOT / "lab" / "src" / "samestep_lab")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "lab" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
    ]
)
_BRITISH = "synchron|optim|normal|initial|serial|parallel|organ|recogn|summar|minim|maxim|util"
TERMS = {
    r"told|tells?|telling": "reports, prints, sends",
    r"sa(?:ys?|id|ying)|sp(?:eaks?|oke)": "reports, prints, states",
    r"hears?|heard|listens to": "receives",
    r"a look|looks? at|looked at|looking at": "polls, inspects, samples",
    r"tak(?:es?|en|ing) down|took down": "records",
    r"shar(?:ed|es?|ing) out": "split across ranks, sharded",
    r"stay(?:s|ed)? whole": "unsplit",
    r"put together": "gathered, concatenated",
    r"cop(?:y|ies) of (?:the|a|your) script": "the script's ranks",
    r"steer(?:s|ed|ing)?": "replicated script",
    r"gradient exchanges?|exchanges? (?:of )?(?:the )?gradients|exposed exchange|exposed sync": (
        "gradient all-reduce, exposed communication"
    ),
    rf"\w*(?:{_BRITISH})is(?:e|es|ed|er|ers|ing|ation|ations)": "American spelling",
    r"(?:behavi|col|neighb|hon|fav|rum)our\w*|cent(?:re|res|red)|labell(?:ed|ing)": "American spelling",
    r"fingerprints?": "checksum",
    r"passengers?|rid(?:es?|ing) along": "payload",
    r"outermost calls?": "top-level forward",
    r"coins?": "Bernoulli mask",
    r"kinds? of calls?": "call signature",
    r"tried both ways": "equivalence check",
    r"own draws|widened draws": "per-sample randomness",
    r"at rest": "on disk, serialized",
    r"put off|puts off": "preempted",
    r"heritage|mouths?": "inherited state, report pipe",
    r"the meeting|(?:ranks|nodes|they|who) (?:meet|met)": "rendezvous",
    r"strays?": "lost launcher environment",
    r"unasked": "launcher side effects",
    r"in turns": "interleaved",
    r"stolen": "CPU contention",
    r"crowded|crowding": "oversubscribed",
    r"fewest workers": "baseline",
    r"doubts?": "caveats",
    r"manager's|engineer's": "summary, advice",
    r"neutral pass": "run with rank-dependent features disabled",
    r"surroundings|conduct": "callbacks, run options",
    r"keepers?": "checkpoint manager",
    r"leftovers?": "orphaned processes and segments",
    r"nobody|somebody|whom|no one": "no rank, any rank",
    r"(?:is|are) to be": "is, are",
    r"of one's own|user's own": "user-defined",
    r"rightly|so to speak|in truth": "(leave out)",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(TERMS)})\b", re.IGNORECASE)
HEADLESS = re.compile(r"(?:What|Where|Who|Whose|Whom|Which|How|Why|When|Of)\b(?!.*\?)")


NAMES = re.compile(
    r"_(?:told|tells?|telling|sa(?:ys?|id|ying)|sp(?:eaks?|oke)|hears?|heard|listens?|looks?|who|whom|whose|"
    r"somebody|nobody|anybody|everybody|strays?|strangers?|lives|unasked|coins?|crowded|stolen|turns|board|"
    r"meets?|met|meeting|knows?|anew|cut|leftovers?|fingerprints?|exchanges?|alike|doubts?|steered|passengers?|"
    r"outermost|heritage|rightly|apart|cook|book|keeper|replicas)(?=_|$)"
    r"|^test_(?:what|who|whom|whose|where|whatever|of|that|whether|which)_"
)
"""Words of the private language in names of tests, and beginnings that make no sentence."""


def old_words(text):
    return PATTERN.findall(re.sub(r"`[^`\n]*`", "``", text))


def test_pages_use_the_terms_of_the_field():
    # Blocks of output and code are tested where they are made; lines of the reference name modules.
    code = re.compile(r"^```.*?^```|^    .*|^::: .*", re.DOTALL | re.MULTILINE)
    found = {str(page.relative_to(ROOT)): old_words(code.sub("", page.read_text())) for page in PAGES}

    assert {page: words for page, words in found.items() if words} == {}


def test_first_lines_of_docstrings_use_the_terms_of_the_field():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{module.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {line}"
        for source in SOURCES
        for module in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, kinds)
        and (line := (ast.get_docstring(node) or "").split("\n", 1)[0])
        and (old_words(line) or HEADLESS.match(line))
    ]

    assert found == []


def test_help_uses_the_terms_of_the_field(capsys):
    found = {}
    for verb in (*VERBS, "lab"):
        command = typer.main.get_command(application(verb)).commands[verb]
        for words in ([verb], *([verb, name] for name in getattr(command, "commands", ()))):
            assert run_command([*words, "--help"]) == 0
            text = capsys.readouterr().out
            assert "--help" in text
            found[" ".join(words)] = old_words(text)

    assert {command: words for command, words in found.items() if words} == {}


def test_names_of_tests_use_the_terms_of_the_field():
    found = [
        f"{module.relative_to(ROOT)}: {node.name}"
        for module in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and NAMES.search(node.name)
    ]

    assert found == []
