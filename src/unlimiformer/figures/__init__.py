"""The paper's figures, from real runs: each gives rows for a CSV file and draws them."""
