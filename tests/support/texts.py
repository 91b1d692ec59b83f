"""Text that tokenizers and decoders get wrong."""

from __future__ import annotations

from hypothesis import strategies as st

HARD = (
    "👩‍👩‍👧‍👦",  # a family: joined by zero-width joiners
    "🏳️‍🌈",
    "🇩🇪🇯🇵",
    "👍🏽",
    "e\u0301a\u0308\u0323",  # combining marks
    "q\u0307\u0323\u0301",
    "𠮷𡈽𩸽",  # CJK outside the BMP
    "日本語の文章。",
    "한국어 ᄒ\u1161\u11ab",
    "שלום עולם",
    "مرحبا\u200f \u202eabc\u202c",
    "हिन्दी",
    "ไทย",
    "\x00\x01\x1b\x7f\x85\xa0",
    "\u2028\u2029\ufeff\u200b",
    "\ufffd\ufffd",
    "\U0010ffff\ue000",
    " \t\n\r\n   \n\n ",
    "ﬁ ½ Ⅷ ™",
    "<|im_start|>user\n<|im_end|>",
    "<|eot_id|><|begin_of_text|><think></think>",
    "it's we'll THEY'RE don't",
    "12345678901234 3.14159",
    "    def f(x):\n        return x**2  # ok\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(HARD),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.text("abc <|>_imend \n", max_size=12),
    ),
    max_size=8,
).map("".join)
