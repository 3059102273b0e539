"""How much was tried, where one test tries thousands of cases: counted as they pass, shown when all tests are done."""

from collections import Counter

TRIED: Counter[str] = Counter()
