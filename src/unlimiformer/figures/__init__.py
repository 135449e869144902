"""The paper's figures from real runs: each module measures, writes the data as CSV and draws a PNG."""
