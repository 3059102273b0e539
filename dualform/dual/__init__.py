"""Parameters as sums over slots: coefficients, rebuilding, contributions, muting, certificates."""
