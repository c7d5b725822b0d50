"""``python -m timonel`` is the command ``timonel``."""

from timonel.cli.entry import main

if __name__ == "__main__":
    main()
