"""How a query follows the barriers of others."""
