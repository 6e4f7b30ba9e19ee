"""Find open transactions on the brokers and in journals: which of them block readers, and how to end them."""
