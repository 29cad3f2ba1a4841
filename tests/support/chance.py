"""Whether random draws are as their probabilities say."""


def goodness(counts, expected):
    """How many standard deviations chi-squared is off (Wilson and Hilferty 1931)."""
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    if not freedom:
        return 0.0
    spread = 2 / (9 * freedom)
    return float(((chi_squared / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)
