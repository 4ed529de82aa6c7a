"""The templates of `code/functions`, from one-liners to small algorithms.

Tier 0: arithmetic and one call. 1: one pass over a list or text. 2: a pass with a twist.
3: several steps. 4: small algorithms.
"""

from __future__ import annotations

from headrace_code.drawn import ints, number, sentence, text, two, words
from headrace_code.harder import HARDER
from headrace_code.template import Template, made

__all__ = ["TEMPLATES"]

_EASY: tuple[Template, ...] = (
    made(
        0,
        "add_constant shift_up increase_by bump",
        "n",
        ("returns {n} plus {k}", "adds {k} to the integer {n} and returns the sum"),
        lambda n, k: n + k,
        body="{n} + {k}",
        near="{n} - {k}",
        draw=number(-50, 50),
        k=(*range(2, 14),),
    ),
    made(
        0,
        "linear apply_line scale_and_shift",
        "x",
        ("returns {a} times {x}, plus {b}", "multiplies {x} by {a} and then adds {b}"),
        lambda x, a, b: a * x + b,
        body="{a} * {x} + {b}",
        near="{a} * ({x} + {b})",
        draw=number(-30, 30),
        edges=((0,),),
        a=(2, 3, 4, 5, 7),
        b=(1, 3, 6, 8),
    ),
    made(
        0,
        "larger_plus bigger_with_bonus max_plus",
        "a b",
        (
            "returns the larger of {a} and {b}, plus {k}",
            "takes two integers and returns the greater of them increased by {k}",
        ),
        lambda a, b, k: max(a, b) + k,
        body="({a} if {a} > {b} else {b}) + {k}",
        near="{a} + {k}",
        draw=two(-40, 40),
        edges=((3, 9), (9, 3)),
        k=(0, 1, 2, 5, 10),
    ),
    made(
        0,
        "is_divisible divides_evenly is_multiple",
        "n",
        (
            "returns True if the integer {n} is divisible by {k}, else False",
            "says whether {n} is a multiple of {k}, as True or False",
        ),
        lambda n, k: n % k == 0,
        body="not {n} % {k}",
        near="{n} % {k}",
        draw=number(-60, 60),
        edges=((0,), (60,), (61,)),
        k=(2, 3, 4, 5, 6, 7, 9, 10),
    ),
    made(
        0,
        "repeat_text say_again echo_times",
        "text",
        (
            "returns the string {text} repeated {k} times",
            "joins {k} copies of {text} into one string",
        ),
        lambda text, k: text * k,
        body='"".join([{text}] * {k})',
        near="{text} * ({k} + 1)",
        draw=text(most=5),
        edges=(("",),),
        k=(2, 3, 4, 5),
    ),
    made(
        0,
        "last_digits tail_of_number low_digits",
        "n",
        (
            "returns the remainder of the non-negative integer {n} when divided by {m}",
            "computes {n} modulo {m} for a non-negative integer {n}",
        ),
        lambda n, m: n % m,
        body="{n} - {n} // {m} * {m}",
        near="{n} // {m}",
        draw=number(0, 5000),
        edges=((0,), (1001,)),
        m=(10, 100, 7, 12, 60),
    ),
    made(
        1,
        "count_above how_many_above number_above",
        "numbers",
        (
            "returns how many numbers in the list {numbers} are greater than {k}",
            "counts the items of {numbers} that are strictly larger than {k}",
        ),
        lambda numbers, k: sum(n > k for n in numbers),
        body="len([n for n in {numbers} if n > {k}])",
        near="len([n for n in {numbers} if n >= {k}])",
        draw=ints(),
        edges=(([],), ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],)),
        k=(0, 1, 3, 5, 8, 10),
    ),
    made(
        1,
        "sum_of_powers power_sum total_of_powers",
        "numbers",
        (
            "returns the sum of all numbers in {numbers}, each raised to the power {p}",
            "raises every item of the list {numbers} to the power {p} and adds the results up",
        ),
        lambda numbers, p: sum(n**p for n in numbers),
        body="total = 0\nfor n in {numbers}:\n    total += n ** {p}\nreturn total",
        near="sum({numbers}) ** {p}",
        draw=ints(-6, 6),
        edges=(([],), ([1, 2, 3],)),
        p=(2, 3, 4),
    ),
    made(
        1,
        "count_letters count_these letters_in_text",
        "text",
        (
            "returns how many characters of {text} are one of the letters in {letters!r}",
            "counts the characters of the string {text} that occur in {letters!r}",
        ),
        lambda text, letters: sum(c in letters for c in text),
        body="sum({text}.count(c) for c in {letters!r})",
        near="len(set({text}) & set({letters!r}))",
        draw=sentence(),
        edges=(("",), ("xyz rst lmn aei ou xyz rst lmn aei",)),
        letters=("aeiou", "aei", "xyz", "rst", "lmn"),
    ),
    made(
        1,
        "every_kth take_every thin_out",
        "items",
        (
            "returns a list of every item of {items} whose index is a multiple of {k}, "
            "starting with the first",
            "keeps the items of the list {items} at the indices 0, {k}, twice {k} and so on",
        ),
        lambda items, k: items[::k],
        body="[{items}[i] for i in range(0, len({items}), {k})]",
        near="{items}[{k} - 1::{k}]",
        draw=ints(most=12),
        edges=(([],), ([1, 2, 3, 4, 5, 6, 7, 8],)),
        k=(2, 3, 4),
    ),
    made(
        1,
        "clamp_all limit_values keep_in_range",
        "numbers",
        (
            "returns the list {numbers} with every number below {low} replaced by {low} and "
            "every number above {high} replaced by {high}",
            "limits each item of {numbers} to the range from {low} to {high} and returns the "
            "new list",
        ),
        lambda numbers, low, high: [min(max(n, low), high) for n in numbers],
        body="[{low} if n < {low} else {high} if n > {high} else n for n in {numbers}]",
        near="[n for n in {numbers} if {low} <= n <= {high}]",
        draw=ints(),
        edges=(([],), ([-99, 99],)),
        low=(-5, 0, 1),
        high=(6, 10),
    ),
    made(
        1,
        "reverse_words words_backwards flip_sentence",
        "sentence",
        (
            "returns the words of {sentence} (separated by single spaces) in reverse order, "
            "joined by {mark!r}",
            "splits {sentence} into words, reverses their order and joins them with {mark!r}",
        ),
        lambda sentence, mark: mark.join(reversed(sentence.split(" "))),
        body="{mark!r}.join({sentence}.split(' ')[::-1])",
        near="{sentence}[::-1].replace(' ', {mark!r})",
        draw=sentence(2, 6),
        edges=(("one",), ("one two three",)),
        mark=(" ", "-", "_", ", "),
    ),
    made(
        1,
        "long_words words_longer_than pick_long_words",
        "words",
        (
            "returns the list of those strings in {words} that have more than {k} characters, "
            "in their order",
            "keeps only the strings of {words} with a length greater than {k}",
        ),
        lambda words, k: [w for w in words if len(w) > k],
        body="list(filter(lambda w: len(w) > {k}, {words}))",
        near="[w for w in {words} if len(w) >= {k}]",
        draw=words(),
        edges=(([],), (["a", "ab", "abc", "abcd", "abcde", "abcdef"],)),
        k=(1, 2, 3, 4, 5),
    ),
    made(
        2,
        "second_largest runner_up next_to_largest",
        "numbers",
        (
            "returns the second largest distinct number of {numbers}, or {none} if there are "
            "fewer than two distinct numbers",
            "finds the largest number in {numbers} that is smaller than the maximum; if there "
            "is none it returns {none}",
        ),
        lambda numbers, none: sorted(set(numbers))[-2] if len(set(numbers)) > 1 else none,
        body="top = max({numbers}, default=0)\nrest = [n for n in {numbers} if n != top]\n"
        "return max(rest) if rest else {none}",
        near="sorted({numbers})[-2] if len({numbers}) > 1 else {none}",
        draw=ints(-9, 9),
        edges=(([],), ([4],), ([7, 7, 3],), ([5, 5],)),
        none=(None, -1, 0),
    ),
    made(
        2,
        "is_palindrome reads_both_ways same_backwards",
        "text",
        (
            "returns True if {text} reads the same backwards when all characters {skip!r} are "
            "left out and case is ignored, else False",
            "ignores case and every {skip!r} in {text} and says whether the rest is a palindrome",
        ),
        lambda text, skip: (t := text.replace(skip, "").lower()) == t[::-1],
        body="kept = [c.lower() for c in {text} if c != {skip!r}]\n"
        "return all(kept[i] == kept[-1 - i] for i in range(len(kept)))",
        near="{text} == {text}[::-1]",
        draw=text("aab", most=6),
        edges=(("",), ("No on",), ("Level",), ("a-Ba",), ("ab.a",), ("abca",)),
        skip=(" ", "-", "."),
    ),
    made(
        2,
        "unique_in_order drop_repeats first_occurrences",
        "items",
        (
            "returns the items of {items} without repetitions, each at the place where it came "
            "first, and at most {k} of them",
            "removes duplicates from {items}, keeps the order and returns the first {k} items "
            "that are left",
        ),
        lambda items, k: list(dict.fromkeys(items))[:k],
        body="kept = []\nfor item in {items}:\n    if item not in kept:\n"
        "        kept.append(item)\nreturn kept[:{k}]",
        near="sorted(set({items}))[:{k}]",
        draw=ints(-4, 4, most=12),
        edges=(([],), ([3, 1, 3, 2, 1],)),
        k=(2, 3, 4, 6),
    ),
    made(
        2,
        "letter_counts count_characters frequencies",
        "text",
        (
            "returns a dictionary that maps each character of {text} that occurs at least {k} "
            "times to the number of times it occurs",
            "counts the characters of {text} and returns those with {k} or more occurrences as a "
            "dictionary from character to count",
        ),
        lambda text, k: {c: text.count(c) for c in set(text) if text.count(c) >= k},
        body="counts = {{}}\nfor c in {text}:\n    counts[c] = counts.get(c, 0) + 1\n"
        "return {{c: n for c, n in counts.items() if n >= {k}}}",
        near="{{c: {text}.count(c) for c in {text} if {text}.count(c) > {k}}}",
        draw=text("abcde", most=14),
        edges=(("",), ("aabbbc",)),
        k=(1, 2, 3),
    ),
    made(
        2,
        "caesar shift_letters rotate_alphabet",
        "text",
        (
            "returns {text} with every lowercase letter moved {k} places forward in the "
            "alphabet, from z on to a again, and everything else unchanged",
            "shifts each of the letters a to z in {text} by {k}, wrapping around at the end of "
            "the alphabet; other characters stay",
        ),
        lambda text, k: "".join(
            chr((ord(c) - 97 + k) % 26 + 97) if "a" <= c <= "z" else c for c in text
        ),
        body="letters = 'abcdefghijklmnopqrstuvwxyz'\n"
        "moved = letters[{k}:] + letters[:{k}]\n"
        "return {text}.translate(str.maketrans(letters, moved))",
        near="''.join(chr(ord(c) + {k}) if c.isalpha() else c for c in {text})",
        draw=sentence(1, 3),
        edges=(("xyz",), ("Abc, z!",), ("",)),
        k=(1, 2, 3, 5, 13),
    ),
    made(
        2,
        "digit_sum sum_the_digits digits_total",
        "n",
        (
            "returns the sum of the digits of the non-negative integer {n}, multiplied by {k}",
            "adds up the decimal digits of {n} (a non-negative integer) and returns {k} times "
            "that sum",
        ),
        lambda n, k: k * sum(map(int, str(n))),
        body="total = 0\nwhile {n}:\n    total += {n} % 10\n    {n} //= 10\nreturn {k} * total",
        near="len(str({n})) * {k}",
        draw=number(0, 99999),
        edges=((0,), (909,)),
        k=(1, 2, 3, 7),
    ),
    made(
        2,
        "rotate_left turn_list move_front_to_back",
        "items",
        (
            "returns {items} rotated to the left by {k} places: the first {k} items go to the "
            "end, one by one, also when the list is shorter",
            "moves the first item of {items} to the end, {k} times in all, and returns the new "
            "list",
        ),
        lambda items, k: items[k % len(items) :] + items[: k % len(items)] if items else [],
        body="moved = list({items})\nfor _ in range({k} if moved else 0):\n"
        "    moved.append(moved.pop(0))\nreturn moved",
        near="{items}[-{k}:] + {items}[:-{k}]",
        draw=ints(most=8),
        edges=(([],), ([1, 2, 3],), ([1],), ([1, 2, 3, 4, 5],)),
        k=(1, 2, 4, 5),
    ),
)

TEMPLATES: tuple[Template, ...] = (*_EASY, *HARDER)
"""All of them; their names are distinct."""
