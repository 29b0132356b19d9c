"""The paper's tables and figures, reports, benchmarks and sweeps. Nothing else imports this package."""
