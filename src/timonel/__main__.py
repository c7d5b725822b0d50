"""Run the command line with ``python -m timonel``."""

from timonel.cli.entry import main

if __name__ == "__main__":
    main()
