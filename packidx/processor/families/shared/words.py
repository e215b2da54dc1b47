"""Numbers in English words, as SmolVLM's processor writes the number of a video's frames."""

from __future__ import annotations

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def cardinal(number: int) -> str:
    """``one hundred and five`` for 105, as the package `num2words` has it; below a million."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_SMALL[hundreds]} hundred" + (f" and {cardinal(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    link = " and " if rest < 100 else ", "
    return f"{cardinal(thousands)} thousand" + (f"{link}{cardinal(rest)}" if rest else "")
