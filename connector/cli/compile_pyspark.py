"""``barrier compile-pyspark``: compile PySpark once, instead of at each start of a Python process."""

from __future__ import annotations

from connector.cli.report import Report
from transactional.errors import OptionError


def compile_pyspark(report: Report) -> None:
    """To start queries faster: compile PySpark once for all Python processes that Spark starts.

    Spark's Python processes import PySpark from the archives in python/lib, which contain only source code. So each process
    compiles PySpark when it starts, which takes about 0.4 seconds. The command adds the compiled modules to the archives. It
    also removes PySpark's own tests from the archives' lists of files: each process reads these lists many times. Run the
    command with the Python of Spark's workers, once for each installation of PySpark, for example when you build an image. It
    uses the Spark in the environment variable SPARK_HOME, otherwise the installed PySpark. Running queries are not disturbed.
    """
    from connector.spark.archives import add_compiled_modules, archives, has_compiled_modules

    found = archives()
    if not found:
        raise OptionError("MISSING_PACKAGE", owner="barrier compile-pyspark", package="pyspark")
    slow = [archive for archive in found if not has_compiled_modules(archive)]
    for archive in slow:
        report.say(f"{archive}: {add_compiled_modules(archive)} compiled modules were added")
    report.facts.update(archives=[str(archive) for archive in slow])
    if not slow:
        report.status = "nothing to do"
        report.say("PySpark is already compiled for this release of Python")
