"""Take savepoints of a query, restore them at a new location, and delete them."""
