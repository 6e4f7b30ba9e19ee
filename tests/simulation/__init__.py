"""One seed is one run: the real protocol on a simulated Spark, simulated stores and simulated clocks, in one thread."""
