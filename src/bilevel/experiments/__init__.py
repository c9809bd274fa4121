"""The paper's tables and figures: configurations, the sweep, the store of results and the report."""
