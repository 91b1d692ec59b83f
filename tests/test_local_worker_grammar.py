"""Constraints of the embedded worker, before they reach llama.cpp."""

from __future__ import annotations

import json

import pytest

from wsgi_router.local_worker.gbnf import parse_gbnf
from wsgi_router.local_worker.grammar import GrammarError, chars, compile_rules, subtract
from wsgi_router.local_worker.json_schema import schema_grammar
from wsgi_router.local_worker.llama import unspellable
from wsgi_router.local_worker.matcher import Matcher
from wsgi_router.local_worker.regex import regex_rules

SURROGATES = ((0xD800, 0xDFFF),)


def whole(matcher: Matcher, text: str) -> bool:
    """Whether ``text`` is a whole sentence."""
    matcher.feed(text.encode())
    return None in matcher._ways


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a" b*\nb ::= [^x-z\\n] | "é"  # end', ["a", "abé", "a("], ["", "b", "ax", "a\n"]),
        ('root ::= (\n "a" |\n "b"\n){2,3}', ["ab", "bba"], ["a", "abab"]),
        ('root ::= "\\x41\\u00e9\\U0001F389\\n\\"" [\\]a-c\\-]', ['Aé🎉\n"]', 'Aé🎉\n"-'], ['Aé🎉\n"d']),
        ('root ::= . "x"{2,} ""', ["漢xx", "xxxx"], ["xx", "漢x"]),
        ('root ::= -a*\n-a ::= "a" | --\n-- ::= "-"', ["", "a-a"], ["b"]),
        ('root ::= my_rule? | "q"+\nmy_rule ::= "(" my_rule? ")"', ["", "(())", "qq"], ["(()", "q("]),
    ],
)
def test_gbnf(grammar: str, good: list[str], bad: list[str]) -> None:
    rules = parse_gbnf(grammar)
    # What is written for llama.cpp means the same when it is read again.
    for read in (rules, parse_gbnf(compile_rules(rules, SURROGATES))):
        assert all(whole(Matcher(read), text) for text in good)
        assert not any(whole(Matcher(read), text) for text in bad)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{3}-[a-z]+?(foo|bar)?$", ["123-a", "123-zfoo"], ["12-a", "123-"]),
        (r"[^a-z\s]\W.", ["A!x", "漢漢漢"], ["a!x", "A!\n", "AAx"]),
        (r"(?:a|b){0,2}\.", [".", "ab."], ["aba.", "abx"]),
        (r"", [""], ["a"]),
    ],
)
def test_regex(pattern: str, good: list[str], bad: list[str]) -> None:
    rules = regex_rules(pattern)
    assert all(whole(Matcher(rules), text) for text in good)
    assert not any(whole(Matcher(rules), text) for text in bad)


@pytest.mark.parametrize("pattern", [r"(?=a)", r"(a)\1", r"\bx", r"(?i)x", r"a$b", r"(?>a)", "(", "a{1001}"])
def test_regex_refusals(pattern: str) -> None:
    with pytest.raises(GrammarError):
        regex_rules(pattern)


def test_ambiguous_recursion_is_stopped() -> None:
    rules = parse_gbnf("root ::= ([a-z]){2} root* | [a-z]{1,3}")
    compile_rules(rules, SURROGATES)
    matcher = Matcher(rules)
    with pytest.raises(GrammarError, match="ambiguous"):
        matcher.feed(b"a" * 200)


def test_deep_but_clear_recursion_is_not() -> None:
    rules = parse_gbnf(schema_grammar('{"type":"array"}'))
    assert whole(Matcher(rules), "[" * 200 + "]" * 200)


def test_ranges() -> None:
    assert chars([(5, 9), (1, 3), (4, 4)]).ranges == ((1, 9),)
    assert chars([(0, 10)], negated=True).ranges == ((11, 0x10FFFF),)
    assert subtract(((1, 9),), ((3, 4), (9, 20))) == ((1, 2), (5, 8))


def test_a_character_without_bytes_is_refused() -> None:
    missing = unspellable({chr(code) for code in range(0x21, 0x17F)} - {"x"})
    with pytest.raises(GrammarError, match="spell"):
        compile_rules(parse_gbnf('root ::= "x"'), missing)
    assert "\\U00000078" not in compile_rules(parse_gbnf("root ::= [w-z]"), missing)


NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/N"}},
    "required": ["v"],
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"']),
        ({"type": ["string", "null"], "maxLength": 2}, ['"ab"', "null"], ['"abc"']),
        ({"$ref": "#/$defs/N", "$defs": {"N": NODE}}, ['{"v":1,"next":{"v":2}}'], ['{"next":{"v":2}}']),
        ({"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}]}, ["[1,true]"], ["[1]"]),
        (
            # Names that begin with no ASCII letter become rules that begin with a hyphen.
            {
                "properties": {"_id": {"const": 1}, "é": {"const": 3}, "中": {"const": 2}},
                "required": ["_id", "é", "中"],
            },
            ['{"_id":1,"\\u00e9":3,"\\u4e2d":2}'],
            ['{"_id":1,"\\u00e9":2,"\\u4e2d":2}'],
        ),
        ({"type": "string", "format": "email", "title": "t", "description": "d"}, ['"x"'], ["x"]),
    ],
)  # fmt: skip
def test_json_schema(schema: dict[str, object], good: list[str], bad: list[str]) -> None:
    rules = parse_gbnf(schema_grammar(json.dumps(schema)))
    assert all(whole(Matcher(rules), text) for text in good)
    assert not any(whole(Matcher(rules), text) for text in bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}]},
        {"type": "number", "maximum": 3},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}},
        {"type": "object", "patternProperties": {"x": {}}},
        {"type": "string", "pattern": "^a$", "maxLength": 3},
        {"type": "integer", "multipleOf": 2},
        {"$ref": "#/$defs/N", "$defs": {"N": {"not": {}}}},
        {"anyOf": [{"type": "string"}, {"if": {}}]},
        {"type": "nothing"},
    ],
)
def test_json_schema_refusals(schema: dict[str, object]) -> None:
    with pytest.raises(GrammarError):
        schema_grammar(json.dumps(schema))
